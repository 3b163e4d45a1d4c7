from pathlib import Path

from serve_shim.engine.memory import available_bytes


def machine(
    folder: Path, *, limit: str | None = None, used: str = "100", stat: str | None = None
) -> int:
    meminfo = folder / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:       2048 kB\n")
    if limit is not None:
        (folder / "memory.max").write_text(limit)
        (folder / "memory.current").write_text(used)
    if stat is not None:
        (folder / "memory.stat").write_text(stat)
    return available_bytes(meminfo, folder)


def test_available_memory_is_the_kernels_estimate(tmp_path: Path) -> None:
    assert machine(tmp_path) == 2048 * 1024


def test_containers_limit_counts_less_what_is_used(tmp_path: Path) -> None:
    assert machine(tmp_path, limit="1000100\n") == 1_000_000
    assert machine(tmp_path, limit="50") == 0


def test_cached_files_of_the_container_count_as_free(tmp_path: Path) -> None:
    stat = "anon 50\ninactive_file 40\ntotal_inactive_file 7\nactive_file 10\n"
    assert machine(tmp_path, limit="1000", used="900", stat=stat) == 140
    assert machine(tmp_path, limit="1000", used="900", stat="anon 900\n") == 100


def test_container_without_limit_changes_nothing(tmp_path: Path) -> None:
    assert machine(tmp_path, limit="max\n") == 2048 * 1024


def test_machine_without_meminfo_has_its_physical_memory(tmp_path: Path) -> None:
    assert available_bytes(tmp_path / "absent", tmp_path) > 2**20

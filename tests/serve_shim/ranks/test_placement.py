import pytest

from serve_shim.ranks.placement import _num_that_fit, rank_resources


@pytest.mark.parametrize(
    ("num_ranks", "num_cores", "cores"),
    [(2, 2, 1.0), (2, 8, 1.0), (4, 2, 0.5), (3, 2, 0.6666), (7, 3, 0.4285), (4, None, 1.0)],
)
def test_ranks_share_the_cores_of_one_machine_only(
    num_ranks: int, num_cores: int | None, cores: float
) -> None:
    assert rank_resources(num_ranks, 0, num_cores) == {"CPU": cores}


def test_ranks_that_share_cores_fit_on_them() -> None:
    for num_ranks in range(1, 65):
        cores = rank_resources(num_ranks, 0, 7)["CPU"]
        assert 0 < round(cores * 10_000) * num_ranks <= 70_000 or num_ranks <= 7


def test_rank_asks_for_its_gpus() -> None:
    assert rank_resources(2, 1, None) == {"CPU": 1.0, "GPU": 1.0}


def test_resources_of_several_nodes_do_not_add_up_for_one_rank() -> None:
    per_rank = {"CPU": 1.0, "GPU": 2.0}
    assert _num_that_fit(per_rank, [{"CPU": 8.0, "GPU": 1.0}, {"CPU": 8.0, "GPU": 1.0}]) == 0
    assert _num_that_fit(per_rank, [{"CPU": 8.0, "GPU": 4.0}, {"CPU": 1.0, "GPU": 4.0}]) == 3


def test_node_without_the_resource_has_none() -> None:
    assert _num_that_fit({"CPU": 1.0, "GPU": 1.0}, [{"CPU": 8.0}]) == 0

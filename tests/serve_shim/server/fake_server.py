"""A server process with the fake engine: `python -m tests.serve_shim.server.fake_server JSON`."""

import json
import sys
import time
from typing import Any

from serve_shim.cli.log import configure_logging
from serve_shim.engine.stats_sink import StatsSink
from serve_shim.engine.status import Phase, StartupStatus
from serve_shim.errors import ModelLoadError, ServeShimError
from serve_shim.sampling.params import SamplingParams
from serve_shim.server import run
from serve_shim.settings.tree import Settings

from .fake_engine import FakeEngine


class MortalEngine(FakeEngine):
    """Dies of a request with seed 666."""

    def validate(self, prompt_token_ids: Any, params: SamplingParams) -> None:
        super().validate(prompt_token_ids, params)
        if params.seed == 666:
            self.death = "killed by a test"


def main(options: dict[str, Any]) -> int:
    """Serves with settings `options["settings"]` and an engine built as the rest says."""

    def build(settings: Settings, status: StartupStatus, sink: StatsSink) -> FakeEngine:
        status.advance(Phase.LOAD, 1, 2)
        time.sleep(options.get("load_s", 0))
        if "load_error" in options:
            raise ModelLoadError(options["load_error"])
        return MortalEngine(step_s=options.get("step_s", 0), sink=sink)

    fields = {"model": "fake", "port": 0, **options.get("settings", {})}
    if "uds" in fields:
        del fields["port"]
    configure_logging("INFO", "text")
    try:
        return run(Settings.model_validate(fields), build=build)
    except ServeShimError as error:
        print(f"serve-shim: error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))

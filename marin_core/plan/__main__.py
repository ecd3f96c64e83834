"""`python -m marin_core.plan`: describe or plan in a process of its own, which has as many virtual devices as the fleet.

A request comes as JSON on standard input: `{"describe": name, "model": …}` or `{"plan": …}`. The answer goes as one JSON document to
standard output, lines of progress to standard error. An error is a document `{"error": {"message", "advice"}}` and its exit code.
"""

import json
import sys
from typing import Any

from marin_core.errors import ConfigError, ExitCode, MarinError
from marin_core.model.config import TransformerConfig
from marin_core.plan.config import PlanConfig
from marin_core.plan.process import PROGRESS


def main() -> int:
    try:
        answer = _answer(json.load(sys.stdin))
    except MarinError as error:
        print(json.dumps({"error": {"message": error.message, "advice": error.advice}}))
        return int(error.exit_code)
    print(json.dumps(answer))
    return ExitCode.DONE


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    if "plan" in request:
        return _plan(PlanConfig.from_json(request["plan"]))
    if "describe" in request:
        from marin_core.plan.compile import use_cpu_devices
        from marin_core.plan.shapes import describe

        use_cpu_devices(1)
        return describe(TransformerConfig.from_json(request["model"]), request["describe"]).model_dump(mode="json")
    raise ConfigError(f"The request has {', '.join(request) or 'nothing'}", advice="Ask to `describe` or to `plan`.")


def _plan(config: PlanConfig) -> dict[str, Any]:
    from marin_core.plan.compile import use_cpu_devices

    use_cpu_devices(config.fleet.mesh.devices)
    from marin_core.plan.build import make_plan

    report, compiled = make_plan(config, log=lambda message: print(f"{PROGRESS}{message}", file=sys.stderr, flush=True))
    took = {"lower_seconds": compiled.lower_seconds, "compile_seconds": compiled.compile_seconds}
    return {"report": report.model_dump(mode="json"), "took": took}


if __name__ == "__main__":
    sys.exit(main())

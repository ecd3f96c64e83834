"""Ask `python -m marin_core.plan`: from a process that doesn't import JAX, or has begun it with other devices. Imports no JAX."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from tempfile import TemporaryFile
from typing import Any

from marin_core.errors import InfrastructureError, MarinError, told_error
from marin_core.model.config import TransformerConfig
from marin_core.plan.config import PlanConfig
from marin_core.plan.description import ModelDescription
from marin_core.plan.report import PlanReport

PROGRESS = "plan: "
"""Begins a line of progress on the other process's standard error."""


def describe_model(model: TransformerConfig, name: str) -> ModelDescription:
    """`marin_core.plan.shapes.describe` in another process."""
    return ModelDescription.from_json(_ask({"describe": name, "model": model.model_dump(mode="json")}, lambda line: None))


def plan_run(config: PlanConfig, progress: Callable[[str], None]) -> tuple[PlanReport, dict[str, float]]:
    """`marin_core.plan.build.make_plan` in another process: the report, and how long lowering and compiling took.

    Args:
        progress: gets a line at each stage.
    """
    answer = _ask({"plan": config.model_dump(mode="json")}, progress)
    return PlanReport.from_json(answer["report"]), answer["took"]


def _ask(request: dict[str, Any], progress: Callable[[str], None]) -> dict[str, Any]:
    """The answer to a request.

    Raises:
        MarinError: of the class of its exit code.
    """
    # What the machine's owner tells XLA must not change what is planned.
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    environment |= {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"}
    said: list[str] = []
    with TemporaryFile("w+") as question, TemporaryFile("w+") as answer:  # files can't block whoever writes first
        json.dump(request, question)
        question.seek(0)
        command = [sys.executable, "-m", "marin_core.plan"]
        with subprocess.Popen(command, stdin=question, stdout=answer, stderr=subprocess.PIPE, text=True, env=environment) as process:
            try:
                for line in process.stderr or ():
                    said.append(line.rstrip())
                    if line.startswith(PROGRESS):  # XLA writes there too
                        progress(said[-1].removeprefix(PROGRESS))
                code = process.wait()
            except BaseException:  # interrupted: nobody wants the answer any more
                process.kill()
                raise
        answer.seek(0)
        return _read(answer.read(), code, said)


def _read(text: str, code: int, said: list[str]) -> dict[str, Any]:
    if code < 0:
        raise InfrastructureError(f"The planning process was ended by signal {-code}", advice="Give it more memory, or plan fewer devices.")
    try:
        answer: dict[str, Any] = json.loads(text)
    except json.JSONDecodeError:
        raise MarinError(f"The planning process ended with code {code}: {' '.join(said[-3:])}", advice="Report this defect.") from None
    if "error" in answer:
        raise told_error(code, answer["error"]["message"], answer["error"]["advice"])
    return answer

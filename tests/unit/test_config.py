"""Options: good ones make the config, bad ones an error with key, allowed values, neighbour."""

from __future__ import annotations

import dataclasses

import pytest

from vllm_xyserve import config, parts
from vllm_xyserve.config import ConfigError, XyConfig, from_additional_config, parse
from vllm_xyserve.ops import isa
from vllm_xyserve.ops.isa import ISAS


def test_no_options_give_the_defaults() -> None:
    assert parse(None) == parse({}) == XyConfig()
    assert from_additional_config(None) == XyConfig()
    assert from_additional_config({"another_plugin": 1}) == XyConfig()


def test_options_are_taken_over() -> None:
    options = {"scheduler": False, "attention": "reference", "linear": "upstream"}
    assert from_additional_config({"xyserve": options}) == XyConfig(False, "reference", "upstream")
    nested = parse({"prefix": {"min_match_tokens": 8}})
    assert nested.prefix == config.PrefixConfig(min_match_tokens=8)


def test_the_config_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        XyConfig().linear = "reference"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("options", "parts_of_the_message"),
    [
        ({"atention": "auto"}, ["xyserve has no key 'atention'", "'attention'", "linear"]),
        ({"zzz": 1}, ["xyserve has no key 'zzz'", "scheduler, attention, linear, prefix"]),
        ({"attention": "fast"}, ["xyserve.attention", "auto | native | reference", "'fast'"]),
        ({"linear": 3}, ["xyserve.linear", "auto | native | reference", "3"]),
        ({"linear": ["auto"]}, ["xyserve.linear", "['auto']"]),
        ({"scheduler": "yes"}, ["xyserve.scheduler", "true | false", "'yes'"]),
        ({"scheduler": 1}, ["xyserve.scheduler", "true | false", "it is 1"]),
        ({"prefix": True}, ["xyserve.prefix must be an object", "token_level", "True"]),
        ({"prefix": {"tails": True}}, ["xyserve.prefix has no key 'tails'", "'reuse_tails'"]),
        ({"prefix": {"min_match_tokens": 0}}, ["xyserve.prefix.min_match_tokens", ">= 1", "0"]),
        ({"prefix": {"min_match_tokens": True}}, ["a whole number", "True"]),
        ({"prefix": {"min_match_tokens": 2.0}}, ["a whole number", "2.0"]),
        ("reference", ["xyserve must be an object", "'reference'", "attention"]),
        ([], ["xyserve must be an object", "[]"]),
    ],
)
def test_bad_options_are_explained(options: object, parts_of_the_message: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        parse(options)
    for part in parts_of_the_message:
        assert part in str(error.value)


def test_an_unknown_key_far_from_all_names_no_neighbour() -> None:
    with pytest.raises(ConfigError) as error:
        parse({"zzz": 1})
    assert "Did you mean" not in str(error.value)


def test_every_option_is_described() -> None:
    rows = config.describe()
    assert [row[0] for row in rows] == [
        "scheduler",
        "attention",
        "linear",
        "prefix.token_level",
        "prefix.min_match_tokens",
        "prefix.reuse_tails",
        "plan.where",
        "fuse_silu",
        "grouped_experts",
    ]
    assert all(allowed and default and text for _, allowed, default, text in rows)


@pytest.mark.parametrize(
    ("on", "why"),
    [
        (parts.Machine(isa="", missing="no library"), "no library"),
        (parts.Machine(isa="avx512_bf16", rival="AMX is there"), "AMX is there"),
        (parts.Machine(isa="scalar"), "not measured on scalar with bfloat16"),
    ],
)
def test_auto_stays_with_the_parent_and_says_why(on: parts.Machine, why: str) -> None:
    for part in parts.PARTS:
        choice = parts.resolve(part, XyConfig(), "cpu", "torch.bfloat16", on)
        assert choice == parts.PartChoice("upstream", f"auto: {why}")


def test_auto_is_native_exactly_where_it_was_measured() -> None:
    for part in parts.PARTS:
        for name in ISAS:
            for dtype in ("bfloat16", "float16", "float32"):
                choice = parts.resolve(part, XyConfig(), "cpu", dtype, parts.Machine(name))
                measured = (name, dtype) in parts._MEASURED[part]
                assert choice.path == ("native" if measured else "upstream"), (part, name, dtype)
                assert bool(choice.reason) != measured


def test_a_cpu_with_newer_vector_extensions_counts_as_unmeasured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """AVX-VNNI without AVX-512: oneDNN may have bf16 kernels there, which nobody compared."""
    info = dataclasses.replace(
        isa.cpu_info(), amx_bf16=False, avx_vnni=True, isas=("scalar", "avx2")
    )
    monkeypatch.setattr(isa, "cpu_info", lambda: info)
    assert "AVX-VNNI" in parts.rival()
    wider = dataclasses.replace(info, isas=ISAS)
    monkeypatch.setattr(isa, "cpu_info", lambda: wider)
    assert "AVX-VNNI" not in parts.rival()


def test_native_by_name_needs_no_measurement_but_the_library() -> None:
    asked = XyConfig(attention="native", linear="native")
    for part in parts.PARTS:
        on = parts.Machine("scalar", rival="AMX is there")
        assert parts.resolve(part, asked, "cpu", "float32", on) == parts.PartChoice("native")
        with pytest.raises(ConfigError, match=rf"xyserve\.{part} is 'native'.*: no library; use"):
            parts.resolve(part, asked, "cpu", on=parts.Machine("", missing="no library"))


def test_named_paths_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"xyserve\.attention is 'native'.*for cuda; use one"):
        parts.resolve("attention", XyConfig(attention="native"), "cuda")
    with pytest.raises(ConfigError, match="cpu only, and the family is cuda"):
        parts.resolve("linear", XyConfig(linear="reference"), "cuda")


def test_named_paths_that_exist_are_taken() -> None:
    both = XyConfig(attention="reference", linear="upstream")
    assert parts.resolve("attention", both, "cpu") == parts.PartChoice("reference")
    assert parts.resolve("linear", both, "npu") == parts.PartChoice("upstream")

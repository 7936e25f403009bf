"""What the platform classes of all families share. They derive from this and the parent's class."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any, ClassVar

from vllm_xyserve import __version__, config, metrics, parts
from vllm_xyserve.log import get_logger
from vllm_xyserve.platform import factory, notes, select, summary

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.platforms.interface import Platform as Base
    from vllm.utils.argparse_utils import FlexibleArgumentParser
else:
    Base = object

logger = get_logger("platform")

SCHEDULER_FACTORY = "vllm_xyserve.scheduler.factory.make_scheduler"

ENV_VARS = (select.ENV_PLATFORM, select.ENV_DEVICE, "XYSERVE_ISA", "XYSERVE_KEEP_ASCEND")


class XyPlatformMixin(Base):
    """Steps of the xyserve platform on top of a parent platform class, whose enum stays.

    vLLM branches on the parent's enum in hundreds of places and never checks the class.
    """

    family: ClassVar[select.Family]

    @classmethod
    def pre_register_and_update(cls, parser: FlexibleArgumentParser | None = None) -> None:
        """Teach vLLM's parsers ``--platform``; called per parser and once without one."""
        super().pre_register_and_update(parser)
        if parser is not None and select.FLAG not in parser._option_string_actions:
            parser.add_argument_group("xyserve").add_argument(
                select.FLAG,
                choices=[select.NAME],
                default=argparse.SUPPRESS,
                help="Run on the xyserve platform (token-level scheduling, Meta-Attention, "
                "SmoothGEMM). Left out: vLLM's own platform.",
            )

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Set our parts into the config; runs in the front end and again in the engine core.

        Raises:
            ConfigError: an option below the key ``xyserve`` is wrong, or something that the
                family cannot do was asked for. vLLM's own commands end with its message instead,
                since pydantic would bury it in 50 lines of traceback.
        """
        try:
            options = config.from_additional_config(vllm_config.additional_config)
            cls.check_environment()
            cls.check_kv_cache_dtype(vllm_config)
            dtype = getattr(vllm_config.model_config, "dtype", None)
            choices = {p: parts.resolve(p, options, cls.family, dtype) for p in parts.PARTS}
        except config.ConfigError as error:
            factory.end_command(str(error), error)
            raise
        before = vllm_config.scheduler_config.scheduler_cls
        super().check_and_update_config(vllm_config)
        scheduler = cls._set_scheduler(vllm_config, options, before)
        cls._set_worker(vllm_config, choices)
        if scheduler.path == "native":
            metrics.open_channel()
        if cls._set_fingerprint(vllm_config, choices):
            for note in notes.take():
                logger.info("xyserve: %s", note)
            cls._announce(vllm_config, scheduler, choices)

    @classmethod
    def _announce(
        cls,
        vllm_config: VllmConfig,
        scheduler: parts.PartChoice,
        choices: dict[parts.Part, parts.PartChoice],
    ) -> None:
        """Log the start-up line, or leave it to our scheduler, which knows the prefix unit."""
        line = summary.start_up_line(cls.family, vllm_config, scheduler, choices)
        additional = vllm_config.additional_config
        if scheduler.path == "native" and isinstance(additional, dict):
            additional[config.START_UP_KEY] = line
        else:
            logger.info("%s prefix_unit=one KV block (vLLM's own)", line)

    @classmethod
    def check_environment(cls) -> None:
        """Raise `ConfigError` for one of our variables that cannot be obeyed on this machine."""

    @classmethod
    def check_kv_cache_dtype(cls, vllm_config: VllmConfig) -> None:
        """Raise `ConfigError` for a KV cache type that the parent platform takes and gets wrong."""

    @classmethod
    def _set_worker(
        cls, vllm_config: VllmConfig, choices: dict[parts.Part, parts.PartChoice]
    ) -> None:
        """Put our worker class in, where the family has one; enter it if a part is lost so."""

    @classmethod
    def _set_scheduler(
        cls, vllm_config: VllmConfig, options: config.XyConfig, before: object
    ) -> parts.PartChoice:
        """Put the scheduler factory in, unless the user chose a class or took the part out."""
        scheduler_config = vllm_config.scheduler_config
        current = scheduler_config.scheduler_cls
        if not options.scheduler:
            if current == SCHEDULER_FACTORY:
                scheduler_config.scheduler_cls = None
            return parts.PartChoice("upstream", "switched off")
        if before not in (None, SCHEDULER_FACTORY):
            logger.warning(
                "xyserve: --scheduler-cls %s is kept, so the xyserve scheduler is off", before
            )
            return parts.PartChoice("upstream", f"--scheduler-cls {before}")
        if getattr(vllm_config, "diffusion_config", None) is not None:
            return parts.PartChoice("upstream", "diffusion models bring their own scheduler")
        if current not in (None, SCHEDULER_FACTORY):  # set by the parent platform just now
            if not isinstance(current, str) or not isinstance(vllm_config.additional_config, dict):
                return parts.PartChoice("upstream", f"the parent platform insists on {current}")
            vllm_config.additional_config[config.SCHEDULER_BASE_KEY] = current
        scheduler_config.scheduler_cls = SCHEDULER_FACTORY
        return parts.PartChoice("native")

    @classmethod
    def _set_fingerprint(
        cls,
        vllm_config: VllmConfig,
        choices: dict[parts.Part, parts.PartChoice],
    ) -> bool:
        """Enter what shapes compiled code into vLLM's cache key; True the first time."""
        additional = vllm_config.additional_config
        if not isinstance(additional, dict):
            return True
        taken: dict[str, Any] = {part: choice.path for part, choice in choices.items()}
        fingerprint = json.dumps(
            {"version": __version__, "isa": summary.isa_name(cls.family), **taken}, sort_keys=True
        )
        first = additional.get(config.FINGERPRINT_KEY) != fingerprint
        additional[config.FINGERPRINT_KEY] = fingerprint
        return first

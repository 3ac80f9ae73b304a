"""Wrong arguments of the command line in one sentence.

What: errors of ``validate_parsed_serve_args`` become sentences, and LoRA adapters are looked for.
Why: the host shows a traceback.
Since: 0.32
Until: never: manners, not a defect.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import load, patch
from cpu_backend.serving import preflight, sentences

CLI_ARGS = (
    "vllm.entrypoints.launchers.cli_args",  # 0.32
    "vllm.entrypoints.common.cli_args",
)


@patch(CLI_ARGS, "validate_parsed_serve_args(args)")
def validate(original: Any) -> Any:
    """In a sentence."""
    from vllm.exceptions import VLLMValidationError

    @sentences.told(*sentences.ARGUMENTS, VLLMValidationError)
    def check(args: Any) -> None:
        original(args)
        for adapter in getattr(args, "lora_modules", None) or ():
            preflight.look_for("LoRA adapter", adapter.path)

    return check


def parse(command_line: list[str]) -> Any:
    """The arguments of ``vllm serve`` for these words, checked."""
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    module = load(CLI_ARGS)
    args = module.make_arg_parser(FlexibleArgumentParser()).parse_args(command_line)
    args.model = args.model_tag or args.model
    module.validate_parsed_serve_args(args)
    return args

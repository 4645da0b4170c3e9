# SPDX-License-Identifier: Apache-2.0
"""Registry of compiled eager programs, their output contracts and the compile gate (chapter 30, section 2)."""

from llm_runtime.digest import ProgramKey, signature_digest, validate_sha256_digest
from llm_runtime.program_compiler.compiler import ProgramCompiler
from llm_runtime.program_compiler.values import CompiledProgram, OutputSpec

__all__ = [
    "CompiledProgram",
    "OutputSpec",
    "ProgramCompiler",
    "ProgramKey",
    "signature_digest",
    "validate_sha256_digest",
]

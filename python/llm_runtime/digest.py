# SPDX-License-Identifier: Apache-2.0
"""Identity of programs and traces: key material, its canonical SHA-256 digest, and the frozen keys that carry it.

Registries look signatures up by value (`SignatureKey`); a digest serves logs, manifests and evidence and is made
the first time somebody asks a key for it. Follows chapter 10, section 7.5 and chapter 30, sections 2.2 and 2.3.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import FrozenInstanceError
from typing import TYPE_CHECKING, Any, ClassVar

from llm_runtime._core import (
    DecodeProgramSignature,
    DecodeTraceSignature,
    PrefillProgramSignature,
    PrefillTraceSignature,
    SignatureKey,
)

if TYPE_CHECKING:
    from typing_extensions import Self

PROGRAM_DOMAIN = "tttv2.llm-runtime.program"
TRACE_DOMAIN = "tttv2.llm-runtime.trace"
SCHEMA_VERSION = 1

_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)

# These four keep their key; every other signature may be mutable, so its material is read anew each time.
NATIVE_SIGNATURES = frozenset(
    (PrefillProgramSignature, PrefillTraceSignature, DecodeProgramSignature, DecodeTraceSignature)
)


def key_material(signature: Any) -> tuple[Any, ...]:
    """The signature's `key_material` (attribute or method); `TypeError` when it is absent or no tuple."""
    try:
        material = signature.key_material
    except AttributeError as error:
        raise TypeError(f"{type(signature).__name__} has no key_material") from error
    if callable(material):
        material = material()
    if not isinstance(material, tuple):
        raise TypeError(f"key_material of {type(signature).__name__} must be a tuple, got {type(material).__name__}")
    return material


def signature_key(signature: Any) -> SignatureKey:
    """The value by which registries find `signature`; errors of `key_material` and of canonicalisation."""
    if type(signature) in NATIVE_SIGNATURES:
        key: SignatureKey = signature.key
        return key
    return SignatureKey.from_material(key_material(signature))


def signature_digest(domain: str, schema_version: int, signature: Any) -> str:
    """SHA-256 (lower-case hex) of the canonical form of `(domain, schema_version, signature's material)`.

    `TypeError` for material that is not canonical (lists, dicts, arrays, dtypes ...), `ValueError` for a float that
    is not finite.
    """
    return _digest_of(signature_key(signature), domain=domain, schema_version=schema_version)


def validate_sha256_digest(digest: Any, domain: str) -> None:
    """Raise `ValueError` unless `digest` is a string of exactly 64 lower-case hex digits."""
    if not isinstance(digest, str) or _DIGEST.fullmatch(digest) is None:
        raise ValueError(f"{domain} digest must be 64 lower-case hex digits, got {digest!r}")


class IdentityKey:
    """A frozen digest of one domain. Made from a signature, it computes the digest when first asked for it."""

    DOMAIN: ClassVar[str]

    __slots__ = ("_digest", "_signature_key")

    _digest: str | None
    _signature_key: SignatureKey | None

    def __init__(self, digest: str) -> None:
        validate_sha256_digest(digest, self.DOMAIN)
        object.__setattr__(self, "_digest", digest)
        object.__setattr__(self, "_signature_key", None)

    @classmethod
    def from_signature(cls, signature: Any) -> Self:
        """The key of a signature in this key's domain."""
        return cls.from_signature_key(signature_key(signature))

    @classmethod
    def from_signature_key(cls, key: SignatureKey) -> Self:
        """The key of an already derived `SignatureKey` (borrowed; it is immutable)."""
        self = cls.__new__(cls)
        object.__setattr__(self, "_digest", None)
        object.__setattr__(self, "_signature_key", key)
        return self

    @property
    def digest(self) -> str:
        """64 lower-case hex digits."""
        if self._digest is None:
            assert self._signature_key is not None
            digest = _digest_of(self._signature_key, domain=self.DOMAIN, schema_version=SCHEMA_VERSION)
            object.__setattr__(self, "_digest", digest)
            return digest
        return self._digest

    @property
    def signature_key(self) -> SignatureKey | None:
        """The value this key was made from, or `None` when only the digest is known."""
        return self._signature_key

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is not type(self):
            return NotImplemented
        assert isinstance(other, IdentityKey)
        if self._signature_key is not None and other._signature_key is not None:
            return bool(self._signature_key == other._signature_key)
        return self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(digest={self.digest!r})"

    def __reduce__(self) -> tuple[type[IdentityKey], tuple[str]]:
        return type(self), (self.digest,)

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")


class ProgramKey(IdentityKey):
    """Identity of one eager program geometry."""

    DOMAIN = PROGRAM_DOMAIN

    __slots__ = ()


class TraceKey(IdentityKey):
    """Identity of one captured trace body."""

    DOMAIN = TRACE_DOMAIN

    __slots__ = ()


def _digest_of(key: SignatureKey, *, domain: str, schema_version: int) -> str:
    return hashlib.sha256(key.canonical_json(domain=domain, schema_version=schema_version)).hexdigest()

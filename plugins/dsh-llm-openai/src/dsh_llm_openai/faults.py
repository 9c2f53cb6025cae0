"""
Failures as `LlmError` with a code of M-3: what the provider said, to which request, what to do next.

Pure: takes status, headers and body, knows no HTTP client. Keys never get into a message.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

import attrs

from dsh_core.errors import LlmError
from dsh_llm_openai.wordings import CODES, FILTERED, OVERFLOW, QUOTA, RATE, WRITING_LIMIT

if TYPE_CHECKING:
    from dsh_llm_openai.profiles import Profile

__all__ = ["Endpoint", "classify", "retry_after", "stream_failure", "unreadable"]

_SHOWN: Final = 2_000
_DETAIL_KEYS: Final = tuple("error message detail errors error_message msg metadata raw failed_generation".split())


@attrs.frozen(kw_only=True)
class Endpoint:
    """
    Whom a request went to; used in messages.

    Args:
        name: Name of the provider.
        base_url: Where it lives.
        profile: For wordings of its own.
        api_key_env: Variable that holds the key, if there is one.
        secret: The key; removed from messages that quote it.
    """

    name: str
    base_url: str
    profile: Profile
    api_key_env: str | None = None
    secret: str | None = attrs.field(default=None, repr=False)

    def error(self, code: str, text: str, status: int | None = None, retry_after: float | None = None) -> LlmError:
        """An `LlmError` that names this endpoint and says what to do."""
        told = text.strip()[:_SHOWN]
        if self.secret and len(self.secret) > 3:
            told = told.replace(self.secret, "***")
        where = f" (HTTP {status})" if status is not None else ""
        hint = self._hint(code, status)
        return LlmError(code, f"{self.name}: {told}{where}{hint}", status, retry_after)

    def _hint(self, code: str, status: int | None) -> str:
        if code == "AUTH":
            key = f"; check the key in {self.api_key_env}" if self.api_key_env else "; check the key"
            return f"{key} and what it may use"
        if code == "QUOTA":
            return "; check the account's plan and billing"
        if status == 404:
            return f"; check the model's name and base_url {self.base_url}"
        return ""


def classify(endpoint: Endpoint, status: int | None, headers: Mapping[str, str], body: Any) -> LlmError:
    """
    The error for an HTTP answer that is a failure.

    Args:
        endpoint: Whom the request went to.
        status: The HTTP status.
        headers: Its headers, for Retry-After.
        body: The body, decoded if it is JSON, else its text.
    """
    code = _code(endpoint.profile, status, body)
    text = _text(body) or f"no explanation, HTTP status {status}"
    return endpoint.error(code, text, status, retry_after(headers))


def stream_failure(endpoint: Endpoint, error: Any) -> LlmError:
    """The error for an error object (or plain text) inside a stream that began well."""
    status = _status_inside(error)
    text = _text(error) or "the provider reported an error without an explanation"
    return endpoint.error(_code(endpoint.profile, status, error, in_stream=True), text, status)


def unreadable(endpoint: Endpoint, body: bytes, content_type: str) -> LlmError:
    """The error for an answer with a good status that is neither an event stream nor JSON."""
    text = body[:4096].decode("utf-8", "replace")
    if _is_html(text):
        hint = "" if "/v1" in endpoint.base_url else "; a path such as /v1 may be missing"
        told = f"answered with a web page{_title(text)} instead of an event stream"
        return endpoint.error("MALFORMED_RESPONSE", f"{told}; check base_url {endpoint.base_url}{hint}")
    kind = f" of type {content_type}" if content_type else ""
    return endpoint.error("MALFORMED_RESPONSE", f"the answer{kind} is not an event stream: {text[:200]!r}")


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """
    Seconds to wait, from `retry-after-ms` or `Retry-After` in seconds or as a date.

    Returns:
        None for nonsense, for negative numbers and for dates in the past.
    """
    millis = _seconds(headers.get("retry-after-ms"))
    if millis is not None:
        return millis / 1000
    value = headers.get("retry-after")
    seconds = _seconds(value)
    if seconds is not None or not value:
        return seconds
    try:
        moment = parsedate_to_datetime(value.strip())
        ahead = moment.timestamp() - (time.time() if now is None else now)
    except (ValueError, OverflowError, OSError):
        return None
    return ahead if ahead > 0 else None


def _seconds(value: str | None) -> float | None:
    if value is None or not re.fullmatch(r"\s*\d{1,12}(\.\d*)?\s*", value, re.ASCII):
        return None
    return float(value)


def _code(profile: Profile, status: int | None, body: Any, *, in_stream: bool = False) -> str:
    names = _names(body)
    text = _text(body)
    for code in ("CONTEXT_OVERFLOW", "QUOTA"):
        if names & CODES[code]:
            return code
    if _is_overflow(profile, status, text):
        return "CONTEXT_OVERFLOW"
    limited = status == 429 or bool(names & CODES["RATE_LIMIT"])
    if status == 402 or ((limited or status in (None, 400, 403)) and QUOTA.search(text) and not RATE.search(text)):
        return "QUOTA"
    if limited:
        return "RATE_LIMIT"
    if status in (401, 403):
        return "CONTENT_FILTER" if status == 403 and FILTERED.search(text) else "AUTH"
    return _by_name(names) or _by_status(status, text, in_stream)


def _is_overflow(profile: Profile, status: int | None, text: str) -> bool:
    if status == 413:
        return True
    if status in (401, 402, 403, 404, 429) or WRITING_LIMIT.search(text):
        return False
    if any(re.search(pattern, text, re.IGNORECASE) for pattern in profile.overflow):
        return True
    return OVERFLOW.search(text) is not None


def _by_name(names: frozenset[str]) -> str | None:
    return next((code for code, known in CODES.items() if names & known), None)


def _by_status(status: int | None, text: str, in_stream: bool) -> str:
    if status is None:
        if RATE.search(text):
            return "RATE_LIMIT"
        return "SERVER" if in_stream else "INVALID_REQUEST"
    if status == 408:
        return "TIMEOUT"
    if status >= 500 or status in (409, 425):
        return "SERVER"
    return "INVALID_REQUEST"


def _status_inside(error: Any) -> int | None:
    """The HTTP status some providers put into an error object."""
    for value in _values(error, ("status", "status_code", "code")):
        number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
        if isinstance(number, int) and not isinstance(number, bool) and 400 <= number <= 599:
            return number
    return None


def _names(body: Any) -> frozenset[str]:
    found = _values(body, ("code", "type", "error_type", "error_code"))
    return frozenset(value.lower() for value in found if isinstance(value, str))


def _values(body: Any, keys: tuple[str, ...]) -> list[Any]:
    """Values of these keys, in the error object and in whatever is nested in it, JSON text included."""
    found: list[Any] = []
    for part in _nested(body):
        found += [part[key] for key in keys if key in part]
    return found


def _nested(body: Any, depth: int = 0) -> list[dict[str, Any]]:
    body = _opened(body)
    if depth > 5:
        return []
    if isinstance(body, list):
        return [part for item in body[:10] for part in _nested(item, depth + 1)]
    if not isinstance(body, dict):
        return []
    inner = [part for key in _DETAIL_KEYS if key in body for part in _nested(body[key], depth + 1)]
    return [body, *inner]


def _text(body: Any, depth: int = 0) -> str:
    """The provider's own words, from whatever shape they are in."""
    body = _opened(body)
    if isinstance(body, str):
        return f"a web page{_title(body)} instead of JSON" if _is_html(body) else body.strip()
    if depth > 5 or body is None:
        return ""
    if isinstance(body, list):
        return "; ".join(filter(None, (_text(item, depth + 1) for item in body[:10])))
    if not isinstance(body, dict):
        return str(body)
    told: list[str] = []
    for key in _DETAIL_KEYS:
        text = _text(body[key], depth + 1) if key in body else ""
        if text and not any(text in other for other in told):
            told.append(text)
    if told:
        return " | ".join(told)
    codes = [str(value) for value in _values(body, ("code", "type", "status")) if value not in (None, "")]
    return " ".join(dict.fromkeys(codes))


def _opened(value: Any) -> Any:
    """JSON given as text, as proxies do with an upstream's error."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _is_html(text: str) -> bool:
    return re.match(r"\s*(<!doctype html|<html|<\?xml|<head|<body)", text, re.IGNORECASE) is not None


def _title(text: str) -> str:
    found = re.search(r"<title[^>]*>\s*(.*?)\s*</title>", text, re.IGNORECASE | re.DOTALL)
    return f" ({found[1][:80]!r})" if found and found[1] else ""

"""
What providers say when something fails, as patterns. Code fields count more than words, words more than status.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["CODES", "FILTERED", "OVERFLOW", "QUOTA", "RATE", "WRITING_LIMIT"]

CODES: Final = {
    "CONTEXT_OVERFLOW": frozenset(
        "context_length_exceeded context_window_exceeded model_context_window_exceeded exceed_context_size_error "
        "context_too_long prompt_too_long input_too_long request_too_large".split()
    ),
    "QUOTA": frozenset(
        "insufficient_quota billing_hard_limit_reached billing_not_active quota_exceeded insufficient_balance "
        "insufficient_user_quota insufficient_credits exceeded_current_quota_error credit_balance_too_low arrearage "
        "payment_required allocationquota.freetieronly".split()
    ),
    "RATE_LIMIT": frozenset(
        "rate_limit_exceeded rate_limit_error rate_limit_reached_error rate_limited rate_limit too_many_requests "
        "tokens_usage_based requests_per_minute throttling throttling.ratequota throttling.allocationquota".split()
    ),
    "AUTH": frozenset(
        "invalid_api_key invalidapikey authentication_error authentication_fails invalid_authentication_error "
        "unauthorized permission_denied permission_error permission_denied_error "
        "account_deactivated access_denied".split()
    ),
    "CONTENT_FILTER": frozenset(
        "content_filter content_filter_error content_policy_violation data_inspection_failed datainspectionfailed "
        "responsibleaipolicyviolation moderation moderation_blocked".split()
    ),
    "MALFORMED_RESPONSE": frozenset("tool_use_failed json_validate_failed".split()),
    "SERVER": frozenset(
        "server_error internal_server_error internal_error api_error overloaded_error overloaded "
        "engine_overloaded_error service_unavailable unavailable bad_gateway internalerror".split()
    ),
    "TIMEOUT": frozenset("timeout request_timeout gateway_timeout timeout_error".split()),
    "INVALID_REQUEST": frozenset(
        "invalid_request_error invalid_request bad_request badrequesterror invalid_parameter_error model_not_found "
        "not_found_error unsupported_parameter invalid_value".split()
    ),
}
"""Code and type fields in lower case, by code of M-3; earlier rows count more."""

OVERFLOW: Final = re.compile(
    r"maximum context (length|window|size)|max(imum)? (prompt|model|input) length|maximum model length"
    r"|context (length|window|size|limit)s?\b.{0,60}\b(exceed|overflow|too (long|large|small))"
    r"|(exceed\w*|larger than|longer than|beyond|overflow\w*)\b.{0,60}\bcontext"
    r"|(prompt|input|conversation|request|messages?) (is |are )?too long"
    r"|input length and `?max_tokens`? exceed|`?inputs`? tokens? \+ `?max_new_tokens`?"
    r"|(input|prompt) (token )?(count|length|tokens)\b.{0,60}\bexceed|prompt exceeds max(imum)? length"
    r"|reduce the length of (the|your) (messages?|prompt|input|conversation)"
    r"|(exceed\w*) (the )?(model'?s? )?(model )?(input )?token limit"
    r"|range of input length should be",
    re.IGNORECASE | re.DOTALL,
)
"""The request is too long for the model."""

WRITING_LIMIT: Final = re.compile(
    r"max_(completion_|output_|new_)?tokens`?'?\"?\s*(is too large|must be|should be|exceeds? the (model'?s )?maximum)"
    r"|supports at most \d+ completion tokens",
    re.IGNORECASE,
)
"""The bound on tokens to write is wrong, which shortening the conversation does not mend."""

RATE: Final = re.compile(
    r"rate.?limit|too many requests|per[ _-](second|minute|hour)|\b[rt]p[ms]\b|(request|token)s? rate"
    r"|slow down|concurren",
    re.IGNORECASE,
)
"""Asking later helps."""

QUOTA: Final = re.compile(
    r"exceeded your current quota|credit balance is too low|payment required|requires more credits|in arrears|past due"
    r"|(quota|billing|credits?|balance|funds|spend\w*)\b.{0,40}"
    r"\b(exhaust|exceed|reach|insufficient|deplet|too low|hard limit|run out)"
    r"|(exhausted|exceeded|insufficient|out of|not enough|no remaining)\b.{0,40}\b(quota|credits?|balance|funds)",
    re.IGNORECASE | re.DOTALL,
)
"""Asking later does not help; paying does."""

FILTERED: Final = re.compile(r"content (management )?(policy|filter)|moderation|flagged|safety system", re.IGNORECASE)
"""The provider refuses the content."""

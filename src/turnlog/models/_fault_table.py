"""What a provider's refusal means: one table for all of them, read from top to bottom.

Providers report the same fault in many words and under many statuses. A row names what must be seen (a
status, a word in the error's type or code, a pattern in its message) and the code it stands for. The
first row that fits decides.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Fault(NamedTuple):
    """A refusal, reduced to what the table looks at."""

    status: int | None
    words: tuple[str, ...]
    """The error's type, code, status and reason, in lower case."""
    message: str


class Rule(NamedTuple):
    """All that is given must fit. ``words`` are compared whole, ``message`` is searched for."""

    code: str
    statuses: frozenset[int] = frozenset()
    words: frozenset[str] = frozenset()
    message: re.Pattern[str] | None = None
    retryable: bool | None = None

    def fits(self, fault: Fault) -> bool:
        if self.statuses and fault.status not in self.statuses:
            return False
        if self.words and self.words.isdisjoint(fault.words):
            return False
        return self.message is None or self.message.search(fault.message) is not None


def _rule(
    code: str,
    *,
    status: tuple[int, ...] = (),
    words: str = "",
    message: str = "",
    retryable: bool | None = None,
) -> Rule:
    pattern = re.compile(message, re.IGNORECASE | re.VERBOSE) if message else None
    return Rule(code, frozenset(status), frozenset(words.split()), pattern, retryable)


_OVERFLOW_WORDS = """
    context_length_exceeded context_window_exceeded exceed_context_size_error too_many_prompt_tokens
    model_context_window_exceeded string_above_max_length tokens_limit_reached request_too_large
    model_max_prompt_tokens_exceeded max_tokens_exceeded context_limit_exceeded prompt_too_long
    contextwindowexceedederror input_too_long
"""
_OVERFLOW_MESSAGE = r"""
    maximum\ context\ length                                  # OpenAI, vLLM, OpenRouter, Mistral, Azure
  | context[ _](length|window|size|limit)[^.]{0,40}(exceed|reached|too\ (small|long|large))
  | (exceed|(long|larg|great)er\ than|overflows?|beyond)[^.]{0,60}context[ _]?(length|window|size|limit)
  | exceeds?\ the\ available\ context                         # llama.cpp
  | prompt\ (is\ )?too\ long | prompt\ exceeds\ max | prompt\ ?超长      # Anthropic, Ollama, Zhipu
  | input\ length\ and\ .?max_tokens.?\ exceed                # Anthropic, Bedrock
  | input\ is\ too\ long | input\ too\ long | input\ (you\ provided\ )?is\ too\ large     # Bedrock
  | too\ many\ (total\ text\ bytes|input\ tokens) | too\ many\ tokens:                  # Bedrock, Cohere
  | input\ token(s|\ count)[^.]{0,40}exceed                   # Google, OpenAI
  | exceeds?\ the\ (maximum|max)\ number\ of\ (input\ )?tokens | maximum\ number\ of\ tokens\ allowed
  | prompt\ token\ count\ of\ \d+\ exceeds
  | maximum\ prompt\ length\ is                               # xAI
  | longer\ than\ the\ (maximum\ )?model('s)?\ (length|context)   # vLLM, SGLang
  | requested\ token\ count\ exceeds                          # SGLang
  | exceeded\ model\ token\ limit | tokens?\ limit\ exceeded  # Moonshot
  | range\ of\ input\ length\ should\ be                      # Alibaba
  | inputs?.?\ (tokens\ \+|must\ have\ less\ than)            # TGI, Together
  | (reduce|shorten)\ (the\ |your\ )?(length|size)\ of\ (the\ |your\ )?(messages|prompt|input)
  | (please\ )?reduce\ your\ (message\ size|prompt)           # Groq
  | request\ too\ large\ for | request\ body\ too\ large\ for  # OpenAI and Groq per-minute limits, GitHub
  | tokens\ must\ be\ reduced
  | total\ length\ of\ all\ messages\ is\ too\ long           # Perplexity
  | (number\ of\ )?tokens\ to\ keep\ from\ the\ initial\ prompt  # LM Studio
  | cannot\ exceed\ the\ total\ tokens\ limit
"""
_FILTER_WORDS = """
    content_filter content_policy_violation responsibleaipolicyviolation content_filtered contentfilter
    data_inspection_failed datainspectionfailed content_policy cyber_policy_violation cyber_policy moderation
    prohibited_content image_content_policy_violation guardrail_intervened
"""
_FILTER_MESSAGE = r"""
    content\ (management|filtering)\ policy | blocked\ by\ (the\ )?content | content\ exists\ risk
  | flagged\ (as|for|by)\b
  | violat(es|ing|ion\ of)\ [^.]{0,30}(usage\ (guidelines|polic)|content\ polic|safety)
  | considered\ high\ risk | requires\ moderation | inappropriate\ content | 敏感内容
"""
_QUOTA_WORDS = """
    insufficient_quota billing_hard_limit_reached billing_not_active billing_error insufficient_balance
    insufficient_credits exceeded_current_quota_error credits_exhausted payment_required
    quota_exceeded_error insufficient_user_quota account_deactivated billing_limit arrearage budget_exceeded
"""
_QUOTA_MESSAGE = r"""
    credit\ balance\ is\ too\ low | insufficient\ (balance|credits?|funds|quota)
  | exceeded\ your\ (monthly|current)\ (included\ )?(credits|quota,\ please\ check\ your\ plan)
  | (used|reached|hit)\ [^.]{0,60}(spending\ limit|available\ credits|credit\ limit|usage\ limits?)
  | requires\ more\ credits | (add|purchase|buy)\ (more\ )?credits | key\ limit\ exceeded | 余额不足
  | billing\ (is\ )?(not|hard|disabled|inactive)
"""
_AUTH_WORDS = """
    invalid_api_key authentication_error permission_error permission_denied unauthenticated api_key_invalid
    invalid_authentication_error unauthorized accessdeniedexception unrecognizedclientexception
    expiredtokenexception invalidsignatureexception missingauthenticationtokenexception
    incompletesignatureexception invalidclienttokenid expiredtoken access_terminated_error
    notauthorizedexception service_disabled api_key_service_blocked consumer_invalid
"""
_AUTH_MESSAGE = r"""
    (api|x-api)[ -]?key\ (is\ )?(not\ (valid|found)|invalid|expired|missing|required)
  | (invalid|incorrect|expired|missing|no|wrong)\ (api|x-api|access|subscription)[ -]?(key|token)
  | security\ token\ .*(invalid|expired) | signature\ expired | not\ authorized\ to\ (access|perform|invoke)
  | don't\ have\ access\ to\ the\ model\ with | no\ (cookie\ )?auth\ credentials
"""
_NOT_FOUND_WORDS = """
    model_not_found deploymentnotfound model_not_available invalid_model model_decommissioned not_found
    not_found_error resourcenotfoundexception modelnotfound unknown_model operationnotsupported
"""
_NOT_FOUND_MESSAGE = r"""
    model\ .{0,80}(does\ not\ exist|not\ exist|not\ found|was\ removed|(been|was)\ de(preca|commission))
  | not\ a\ valid\ model | invalid\ model\ ?(name|id)?(:|\ passed) | model\ identifier\ is\ invalid
  | unknown\ model | models/\S+\ is\ not\ found
  | no\ (allowed\ )?(providers|endpoints)\ (are\ )?(available|found)\ for
"""
_OVERLOAD_WORDS = """
    overloaded_error overloaded engine_overloaded server_overloaded model_overloaded engine_overloaded_error
    unavailable serviceunavailableexception modelnotreadyexception capacity_exceeded no_available_server
    service_unavailable model_unavailable slow_down
"""
_SERVER_WORDS = """
    server_error internal_server_error api_error internal internalserverexception internalservererror
    modelstreamerrorexception modelerrorexception internalfailure service_error upstream_error
    vector_store_timeout cancelled aborted unknown data_loss bad_gateway connection_error
    internalserviceexception stream_error
"""
_SERVER_MESSAGE = r"""
    internal | server\ (had\ an\ )?error | disconnect | upstream | unavailable | timed?\ ?out | \bEOF\b
  | compute\ error | terminated | crashed | unloaded | engine
  | connection\ (was\ )?(refused|reset|closed|lost)
"""
_LIMIT_WORDS = """
    rate_limit_exceeded rate_limit_error throttlingexception throttling_error resource_exhausted
    too_many_requests toomanyrequestsexception rate_limited rate_limit_reached_error requests tokens
    rate_limit_exceeded_error servicequotaexceededexception provisionedthroughputexceededexception
    throttling limitexceededexception rate_limit
"""
_TIMEOUT_WORDS = "timeout deadline_exceeded modeltimeoutexception timeout_error"
_BAD_WORDS = """
    invalid_request_error invalid_argument validationexception badrequesterror bad_request invalid_request
    unprocessable_entity validation_error failed_precondition out_of_range invalid_prompt invalid_input
    serializationexception unsupported_value
"""

RULES: tuple[Rule, ...] = (
    # The words decide before the status does: the same sentence comes as 400, 413, 422, 429, 500 and 200.
    _rule("ModelBadRequest", words="string_above_max_length", message=r"maximum\ length\ \d{1,4}\b"),  # an id
    _rule("ModelContextOverflow", words=_OVERFLOW_WORDS),
    _rule("ModelQuotaExceeded", words=_QUOTA_WORDS),
    _rule("ModelContentFiltered", words=_FILTER_WORDS),
    # Google says "exceeded your current quota" for per-minute limits too, and then when to come back.
    _rule("ModelQuotaExceeded", words="resource_exhausted", message=r"per\ ?day|free_tier.*limit:\ 0"),
    _rule("ModelRateLimited", words="resource_exhausted"),
    _rule("ModelQuotaExceeded", status=(402,)),
    _rule("ModelQuotaExceeded", status=(400, 401, 403, 429), message=_QUOTA_MESSAGE),
    _rule("ModelContextOverflow", status=(400, 413, 422, 429), message=_OVERFLOW_MESSAGE),
    _rule("ModelContextOverflow", status=(413,)),
    _rule("ModelContentFiltered", status=(400, 403, 422, 451), message=_FILTER_MESSAGE),
    _rule("ModelAuthError", status=(400, 401, 403), words=_AUTH_WORDS),
    _rule("ModelAuthError", status=(400,), message=_AUTH_MESSAGE),
    # The model wrote a call that does not fit its tool, and the server threw it away: the next try may fit.
    _rule("ModelBadRequest", words="tool_use_failed", retryable=True),
    _rule("ModelNotFound", status=(400, 403, 404, 410, 422), words=_NOT_FOUND_WORDS),
    _rule("ModelNotFound", status=(400, 403, 422), message=_NOT_FOUND_MESSAGE),
    _rule("ModelAuthError", status=(401, 403, 407)),
    _rule("ModelNotFound", status=(404, 410)),
    _rule("ModelTimeout", status=(408,)),
    _rule(
        "ModelOverloaded", status=(429,), words="engine_overloaded_error engine_overloaded overloaded_error"
    ),
    _rule("ModelRateLimited", status=(429,)),
    _rule("ModelOverloaded", status=(498, 503, 529)),
    _rule("ModelServerError", status=(409, 425), message=r"try\ again|retry|in\ progress|not\ ready"),
    _rule("ModelRateLimited", status=(400, 424), words=_LIMIT_WORDS),
    _rule("ModelOverloaded", status=(400, 424, 499, 500, 502), words=_OVERLOAD_WORDS),
    _rule("ModelOverloaded", status=(500, 502, 504, 520), message=r"\b(overloaded|at\ capacity)\b"),
    _rule("ModelContextOverflow", status=(500,), message=_OVERFLOW_MESSAGE),
    _rule("ModelServerError", status=(499,)),
    _rule("ModelTimeout", status=(500, 502, 503, 504), words=_TIMEOUT_WORDS),
    _rule("ModelServerError", status=tuple(range(500, 600))),
    _rule("ModelBadRequest", status=tuple(range(300, 500))),
    # No status at all: an error in the middle of a stream.
    _rule("ModelOverloaded", words=_OVERLOAD_WORDS),
    _rule("ModelRateLimited", words=_LIMIT_WORDS),
    _rule("ModelContextOverflow", message=_OVERFLOW_MESSAGE),
    _rule("ModelAuthError", words=_AUTH_WORDS),
    _rule("ModelNotFound", words=_NOT_FOUND_WORDS),
    _rule("ModelTimeout", words=_TIMEOUT_WORDS),
    _rule("ModelServerError", words=_SERVER_WORDS),
    _rule("ModelQuotaExceeded", message=_QUOTA_MESSAGE),
    _rule("ModelContentFiltered", message=_FILTER_MESSAGE),
    _rule("ModelOverloaded", message=r"\b(overloaded|at\ capacity)\b"),
    _rule("ModelRateLimited", message=r"rate\ ?limit|too\ many\ requests|throttl"),
    _rule("ModelBadRequest", words=_BAD_WORDS),
    _rule("ModelServerError", message=_SERVER_MESSAGE),
)

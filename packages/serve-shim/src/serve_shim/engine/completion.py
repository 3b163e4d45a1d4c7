"""Owns what a new token does to its sequence and when generation ends; refuses to free anything."""

from serve_shim.engine.output import CompletionDelta, FinishReason, TokenLogprobs
from serve_shim.engine.request import Sequence


def accept_token(
    sequence: Sequence, token_id: int, logprobs: TokenLogprobs | None
) -> CompletionDelta:
    """Append a token to its sequence and say what the completion gained.

    A stop token, then a stop string, then the length limit is looked for; none of the stops
    counts before `min_tokens`. A stop token's text is shown only with
    `include_stop_str_in_output`. A request for no tokens gains none.
    """
    request = sequence.request
    if request.max_tokens == 0:
        return CompletionDelta(sequence.index, "", (), None, "length")
    sequence.output_ids.append(token_id)
    sequence.num_tokens += 1
    may_stop = len(sequence.output_ids) >= request.params.min_tokens
    if may_stop and token_id in request.stop_ids:
        text, finish, stop_reason = _stop_at_token(sequence, token_id)
    else:
        text, finish, stop_reason = _continue(sequence, token_id, may_stop)
    entries = None if logprobs is None else (logprobs,)
    return CompletionDelta(sequence.index, text, (token_id,), entries, finish, stop_reason)


def _stop_at_token(sequence: Sequence, token_id: int) -> tuple[str, FinishReason, str | int | None]:
    text = ""
    if sequence.request.params.include_stop_str_in_output:
        text = sequence.text.push(token_id, may_match=False)
    is_eos = token_id in sequence.request.eos_ids
    return text + sequence.text.flush(may_match=False), "stop", None if is_eos else token_id


def _continue(
    sequence: Sequence, token_id: int, may_stop: bool
) -> tuple[str, FinishReason | None, str | int | None]:
    stream = sequence.text
    text = stream.push(token_id, may_match=may_stop)
    is_last = len(sequence.output_ids) >= sequence.request.max_tokens
    if is_last and stream.matched is None:
        text += stream.flush(may_match=may_stop)
    if stream.matched is not None:
        return text, "stop", stream.matched
    return text, "length" if is_last else None, None

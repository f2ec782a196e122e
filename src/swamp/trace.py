"""Spans for OpenTelemetry, if its usual variables are set and the extra `swamp[otel]` is there; else nothing at all.

One span per command, run, step, push, pull, commit and request to the store. What a span says is who did what to which
object: names and keys, never content.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Facts = Callable[..., tuple[str, dict[str, Any]]]
VARIABLES: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER")
_open: list[Any] = []
"""The spans that are open in this process, oldest first: work in other threads belongs to the newest of them."""


@contextmanager
def span(name: str, **facts: Any) -> Iterator[None]:
    """A span around a block."""
    tracer = _tracer()
    if tracer is None:
        yield
        return
    from opentelemetry import trace

    here = trace.get_current_span()
    outer = here if here.get_span_context().is_valid else (_open[-1] if _open else None)
    context = trace.set_span_in_context(outer) if outer is not None else None
    shown = {f"swamp.{key}": str(value) for key, value in facts.items() if value is not None}
    with tracer.start_as_current_span(name, context=context, attributes=shown) as made:
        _open.append(made)
        try:
            yield
        finally:
            _open.remove(made)


def traced(told: Facts) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A span around a method; `told` gives its name and what it says, from the arguments."""

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if _tracer() is None:
                return method(*args, **kwargs)
            name, facts = told(*args, **kwargs)
            with span(name, **facts):
                return method(*args, **kwargs)

        return call

    return decorate


def flush() -> None:
    """Sends what is left: a process that ends without cleaning up would lose it."""
    if _tracer() is not None:
        from opentelemetry import trace

        getattr(trace.get_tracer_provider(), "force_flush", lambda: None)()


@functools.cache
def _tracer() -> Any:
    """The tracer, None where nobody wants traces or the packages are not there: a command works without them."""
    wanted = any(os.environ.get(name) for name in VARIABLES) and os.environ.get("OTEL_TRACES_EXPORTER") != "none"
    if not wanted or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider, export

        if os.environ.get("OTEL_TRACES_EXPORTER") == "console":
            processor: Any = export.SimpleSpanProcessor(export.ConsoleSpanExporter(out=sys.stderr))
        else:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            processor = export.BatchSpanProcessor(OTLPSpanExporter())
    except ImportError:
        return None
    provider = TracerProvider(resource=Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "swamp")}))
    provider.add_span_processor(processor)
    trace.set_tracer_provider(provider)
    return trace.get_tracer("swamp")

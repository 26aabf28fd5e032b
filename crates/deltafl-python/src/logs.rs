//! Forwards log events of the libraries to Python's `logging`.

use std::fmt::{Debug, Write};

use pyo3::prelude::*;
use tracing::dispatcher::has_been_set;
use tracing::field::{Field, Visit};
use tracing::metadata::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, set_global_default};
use tracing::{Event, Level, Metadata, Subscriber};

/// Starts forwarding the events of our crates to the logger `deltafl`.
pub(crate) fn start(py: Python<'_>) -> PyResult<()> {
    // A logger may already exist: that of the command in this process, or this one from an earlier
    // call. Another one would be queried for every log statement while the interpreter waits.
    if has_been_set() {
        return Ok(());
    }
    let logger = py.import("logging")?.call_method1("getLogger", ("deltafl",))?;
    // Another thread may have set it first.
    let _ = set_global_default(Logger(logger.unbind()));
    Ok(())
}

/// A Python logger.
struct Logger(Py<PyAny>);

impl Subscriber for Logger {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("deltafl") && *metadata.level() <= Level::INFO
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let level = match *event.metadata().level() {
            Level::ERROR => 40,
            Level::WARN => 30,
            _ => 20,
        };
        // An interpreter that is shutting down receives no events.
        let _ = Python::try_attach(|py| {
            if let Err(error) = self.0.bind(py).call_method1("log", (level, "%s", line.text())) {
                error.write_unraisable(py, None);
            }
        });
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The message of an event and its fields.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Line {
    fn text(&self) -> String {
        if self.fields.is_empty() {
            self.message.clone()
        } else {
            format!("{}:{}", self.message, self.fields)
        }
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

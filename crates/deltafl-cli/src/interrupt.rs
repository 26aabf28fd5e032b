//! Handling of Ctrl-C and termination signals.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use crate::dashboard;

/// Returns the process-wide flag that Ctrl-C or a termination signal sets. The second signal ends
/// the process immediately.
pub(crate) fn stop_on_interrupt() -> &'static Arc<AtomicBool> {
    static STOP: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| {
        let stop = Arc::new(AtomicBool::new(false));
        let raised = Arc::clone(&stop);
        // Without a handler, Ctrl-C ends the process immediately. The run folder remains valid.
        let _ = ctrlc::set_handler(move || {
            if raised.swap(true, Ordering::Relaxed) {
                dashboard::restore();
                std::process::exit(130);
            }
            // The dashboard displays this itself.
            if !dashboard::is_open() {
                eprintln!("\nfinishing the round; press Ctrl-C again to quit immediately");
            }
        });
        stop
    });
    &STOP
}

/// Returns `Break` if Ctrl-C was pressed or a termination signal arrived.
pub(crate) fn interrupted() -> ControlFlow<()> {
    if stop_on_interrupt().load(Ordering::Relaxed) {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}

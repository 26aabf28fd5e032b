//! Handling of Ctrl-C and termination signals.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::dashboard;

/// Returns the process-wide flag that Ctrl-C or a termination signal sets, for commands that finish
/// the current round. The second signal ends the process immediately.
pub(crate) fn stop_on_interrupt() -> &'static Arc<AtomicBool> {
    stop_flag("finishing the round")
}

/// Like [`stop_on_interrupt`], for devices. They do not finish the round.
pub(crate) fn disconnect_on_interrupt() -> &'static Arc<AtomicBool> {
    stop_flag("disconnecting")
}

fn stop_flag(action: &'static str) -> &'static Arc<AtomicBool> {
    static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    STOP.get_or_init(|| {
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
                eprintln!("\n{action}; press Ctrl-C again to quit immediately");
            }
        });
        stop
    })
}

/// Returns `Break` if Ctrl-C was pressed or a termination signal arrived.
pub(crate) fn interrupted() -> ControlFlow<()> {
    if stop_on_interrupt().load(Ordering::Relaxed) {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}

//! Ctrl-C and termination.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use crate::dashboard;

/// The flag that Ctrl-C or a termination sets, one for the process. The second signal ends the process at once.
pub(crate) fn stop_on_interrupt() -> &'static Arc<AtomicBool> {
    static STOP: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| {
        let stop = Arc::new(AtomicBool::new(false));
        let raised = Arc::clone(&stop);
        // Without a handler Ctrl-C ends the process at once, which a run folder survives.
        let _ = ctrlc::set_handler(move || {
            if raised.swap(true, Ordering::Relaxed) {
                dashboard::restore();
                std::process::exit(130);
            }
            // A dashboard shows it itself.
            if !dashboard::is_open() {
                eprintln!("\nfinishing the round; press Ctrl-C again to quit at once");
            }
        });
        stop
    });
    &STOP
}

//! The header matches the source, and a device in C contributes the same bits as one in Rust.
#![allow(clippy::unwrap_used, missing_docs, unsafe_code)]

#[path = "../../deltafl-server/examples/embedded.rs"]
mod embedded;
#[path = "../../deltafl-device/examples/own_trainer.rs"]
mod own_trainer;
#[path = "../../deltafl-server/tests/field/watchdog.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod watchdog;

use std::ffi::{CStr, CString, c_void};
use std::io::Read as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex};

use deltafl::training::{Outcome, State};
use deltafl_c::{
    deltafl_join, deltafl_options, deltafl_plan, deltafl_random, deltafl_stop, deltafl_trainer, deltafl_wait,
};
use deltafl_data::run_folder;
use deltafl_server::ServerEvent;
use deltafl_server::authority::{Authority, FleetIdentities, Revocations};
use deltafl_server::listener::Protection;
use deltafl_server::serve::{Host, Introduction, Setup};
use deltafl_wire::loopback;
use deltafl_wire::roster::RosterVersion;

const NAMES: [&str; 4] = ["sensor-0", "sensor-1", "sensor-2", "sensor-3"];

#[test]
fn the_header_matches_the_source() {
    let _limit = watchdog::start();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = folder.join("include/deltafl.h");
    let mut header = Vec::new();
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).unwrap();
    cbindgen::Builder::new()
        .with_config(config)
        .with_src(folder.join("src/lib.rs"))
        .generate()
        .unwrap()
        .write(&mut header);
    let header = String::from_utf8(header).unwrap();
    if std::env::var_os("UPDATE_HEADER").is_some() {
        std::fs::write(&path, &header).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), header, "UPDATE_HEADER=1 regenerates it");
}

/// Returns the folder of the shared library that cargo built for this test.
fn library() -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let file = format!("{}deltafl_c{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    assert!(folder.join(&file).exists(), "{file} in {}", folder.display());
    folder
}

/// Compiles line.c.
fn compiled(out: &Path) -> PathBuf {
    let (folder, program, library) = (Path::new(env!("CARGO_MANIFEST_DIR")), out.join("line"), library());
    let cc = Command::new("cc")
        // Round products and sums separately, as Rust does.
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-ffp-contract=off"])
        .arg("-I")
        .arg(folder.join("include"))
        .arg(folder.join("tests/line.c"))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(&library)
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .arg("-ldeltafl_c")
        .output()
        .unwrap();
    assert!(cc.status.success(), "{}", String::from_utf8_lossy(&cc.stderr));
    program
}

/// Ends the program and returns its output.
fn ended(mut child: Child) -> String {
    drop(child.stdin.take());
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success());
    said
}

/// Trains with four devices. The last one is the program, if given.
fn trained(program: Option<&Path>) -> State {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let child = Arc::new(Mutex::new(None));
    let (devices, started, program) =
        (runtime.handle().clone(), Arc::clone(&child), program.map(Path::to_owned));
    let observer = move |event: ServerEvent<'_>| {
        let ServerEvent::Listening { address, .. } = event else { return Ok(ControlFlow::Continue(())) };
        let address = address.to_string();
        for (k, name) in NAMES.into_iter().enumerate() {
            // Exact in binary, so that both languages parse the same number.
            let shift = 0.25 * k as f32;
            match program.as_ref().filter(|_| k == 3) {
                Some(program) => {
                    let mut command = Command::new(program);
                    command.args([&address, name, &shift.to_string()]);
                    // Cargo sets its folders in this variable, and one may contain an old library.
                    command.env("LD_LIBRARY_PATH", library());
                    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
                    *started.lock().unwrap() = Some(child);
                }
                None => drop(devices.spawn(own_trainer::take_part(address.clone(), name, shift))),
            }
        }
        Ok(ControlFlow::Continue(()))
    };
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let outcome = embedded::serve("127.0.0.1:0", &NAMES, &run, observer);
    if let Some(child) = child.lock().unwrap().take() {
        assert_eq!(ended(child), "joined\nstopped\n");
    }
    assert_eq!(outcome.unwrap(), Outcome::Finished);
    run_folder::read_checkpoint(&run, 1).unwrap().expect("a finished run has a checkpoint")
}

#[test]
fn a_device_in_c_contributes_the_same_bits_as_one_in_rust() {
    let _limit = watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path());
    let (in_rust, in_c) = (trained(None), trained(Some(&program)));
    assert_eq!(in_rust.round, 40);
    assert_eq!(in_rust, in_c);
    // The line through all points has slope 2.
    let slope = in_rust.tracks[0].params.as_slice()[0];
    assert!((slope - 2.0).abs() < 0.2, "{slope}");
}

extern "C" fn no_loss(_: *mut c_void, _: *const f32, _: usize, _: usize, _: *mut f64) -> i32 {
    1
}

extern "C" fn no_update(_: *mut c_void, _: *mut f32, _: *const deltafl_plan, _: *mut deltafl_random) -> i32 {
    1
}

/// Joins a server. Returns the reason why joining failed or why the device ended.
fn refusal(server: Option<&str>, identity: Option<&str>, state: Option<&str>, params: usize) -> String {
    let [server, identity, state] =
        [server, identity, state].map(|text| text.map(|text| CString::new(text).unwrap()));
    let name = CString::new(NAMES[0]).unwrap();
    let options = deltafl_options {
        server: server.as_ref().map_or(null(), |server| server.as_ptr()),
        identity: identity.as_ref().map_or(null(), |identity| identity.as_ptr()),
        name: name.as_ptr(),
        state: state.as_ref().map_or(null(), |state| state.as_ptr()),
        min_cohort: 0,
        rounds_between: 0,
        answers: 0,
        answers_per_day: 0,
        min_batch: 0,
        min_steps: 0,
        min_examples: 0,
        bucketed: false,
        reproducible: false,
    };
    let (loss, update) = (Some(no_loss as _), Some(no_update as _));
    let trainer = deltafl_trainer { context: null_mut(), params, examples: 5, loss, update };
    let mut error = [0; 40];
    // SAFETY: all structures are initialised and outlive the device.
    unsafe {
        let device = deltafl_join(&options, &trainer, error.as_mut_ptr(), error.len());
        if !device.is_null() {
            while deltafl_wait(device, 1000, error.as_mut_ptr(), error.len()) == 0 {}
            deltafl_stop(device);
        }
        CStr::from_ptr(error.as_ptr()).to_str().unwrap().to_owned()
    }
}

#[test]
fn failures_report_a_reason_truncated_to_fit() {
    let _limit = watchdog::start();
    assert_eq!(refusal(None, None, None, 2), "options.server is NULL");
    for (server, reason) in
        [("localhost", "host:port is expected"), ("http://localhost:1", "devices do not use http")]
    {
        // The device would try to connect forever.
        assert!(refusal(Some(server), None, None, 2).starts_with(reason), "{server}");
    }
    let names = NAMES.into_iter();
    let roster = loopback::roster(RosterVersion { version: 1, expires: u64::MAX }, names, |_| false).unwrap();
    let introduction = Introduction { params: 2, ..Introduction::new("points").unwrap() };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let setup = Setup::loopback("127.0.0.1:0".parse().unwrap(), introduction);
    let (host, _link) = runtime.block_on(Host::start(setup, &roster)).unwrap();
    assert_eq!(
        refusal(Some(&host.address().to_string()), None, None, 3),
        "the server trains 2 parameters, this de"
    );
    runtime.block_on(host.shut_down());
}

#[test]
fn a_device_with_an_identity_must_store_its_state() {
    let _limit = watchdog::start();
    let refused = refusal(Some("127.0.0.1:1"), Some("identity"), None, 2);
    assert!(refused.starts_with("options.state is NULL"), "{refused}");
}

#[test]
fn a_device_whose_certificate_is_refused_ends_with_the_reason() {
    let _limit = watchdog::start();
    let authority = Authority::generate("points".parse().unwrap(), 30).unwrap();
    let device = FleetIdentities::issue(&authority, 0, 1, 30).unwrap().devices.remove(0);
    let revocations = Revocations::new();
    revocations.replace([device.fingerprint()].into());
    let server = authority.issue_server(&["127.0.0.1".to_owned()], 30).unwrap();
    let roster =
        loopback::roster(RosterVersion { version: 1, expires: u64::MAX }, NAMES.into_iter(), |_| false);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let setup = Setup::loopback("127.0.0.1:0".parse().unwrap(), Introduction::new("points").unwrap());
    let protection = Protection::mutual(server.mutual_tls(&revocations, &[b"h2"]).unwrap());
    let (host, _link) =
        runtime.block_on(Host::start(Setup { protection, ..setup }, &roster.unwrap())).unwrap();
    let folder = tempfile::tempdir().unwrap();
    device.save(folder.path()).unwrap();
    let (identity, state) = (folder.path().to_str().unwrap(), folder.path().join("state"));
    let refused = refusal(Some(&host.address().to_string()), Some(identity), state.to_str(), 2);
    assert_eq!(refused, "the server refuses this device's certif");
    runtime.block_on(host.shut_down());
}

//! `deltafl serve` and `deltafl swarm`: the same experiment, deployed, to the same bytes.

#![cfg(feature = "net")]
#![allow(clippy::unwrap_used)]

mod support;

use support::{DEPLOYED, Desk, Running, checkpoints};

const SERVE: &str = "serve x.toml --insecure --set seeds=[1,2] --wait-for 12 --out deployed";

/// A server at this address, and where it listens.
fn server(desk: &Desk, listen: &str) -> (Running, String) {
    let mut server = desk.start(&format!("{SERVE} --listen {listen}"));
    let address = server.hear("listening on ").split(';').next().unwrap().to_owned();
    (server, address)
}

#[test]
fn killed_again_and_again_the_server_ends_with_the_bytes_of_a_simulation() {
    let desk = Desk::with(DEPLOYED);
    desk.printed("run x.toml --set seeds=[1,2] --quiet --out simulated");
    let (mut serving, address) = server(&desk, "127.0.0.1:0");
    let _swarm = desk.start(&format!("swarm x.toml --insecure --server {address}"));
    for round in ["seed 1, round 1:", "seed 1, round 3:", "seed 2, round 2:"] {
        serving.hear(round);
        drop(serving); // as by kill -9, somewhere in the next round
        serving = server(&desk, &address).0;
    }
    serving.hear("seed 2, round 4:");
    assert!(serving.child.wait().unwrap().success());
    assert_eq!(checkpoints(&desk.path("simulated")), checkpoints(&desk.path("deployed")));
}

#[test]
fn a_server_of_other_machines_needs_certificates() {
    let refused = Desk::with(DEPLOYED).refusal("serve x.toml --insecure --listen 0.0.0.0:0");
    assert!(refused.contains("without certificates"), "{refused}");
}

//! `deltafl serve` and `deltafl swarm`: the same experiment, deployed, to the same bytes.

#![cfg(feature = "net")]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use tempfile::TempDir;

const EXPERIMENT: &str = r#"
name = "deployed"
seeds = [1, 2]
rounds = 4
cohort = 8
evaluate_every = 2
[data]
source = { kind = "glyphs", devices = 24 }
[model]
kind = "linear"
[local]
steps = 2
batch = 10
learning_rate = 0.1
[[algorithm]]
kind = "fedavg"
[[algorithm]]
kind = "delta-fl"
theta = 0.5
quantile = "histogram"
"#;

fn deltafl() -> Command {
    Command::new(env!("CARGO_BIN_EXE_deltafl"))
}

fn experiment(folder: &TempDir) -> PathBuf {
    let path = folder.path().join("x.toml");
    fs::write(&path, EXPERIMENT).unwrap();
    path
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server, and what it says.
struct Server {
    process: Running,
    said: BufReader<ChildStderr>,
    address: String,
    http: String,
}

impl Server {
    fn start(experiment: &Path, out: &Path, listen: &str) -> Self {
        let mut child = deltafl()
            .arg("serve")
            .arg(experiment)
            .args(["--insecure", "--listen", listen, "--http", "127.0.0.1:0", "--wait-for", "12", "--out"])
            .arg(out)
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stderr.take().unwrap());
        let mut server = Self { process: Running(child), said, address: String::new(), http: String::new() };
        server.http = server.hear("live page").trim().rsplit('/').next().unwrap().to_owned();
        let line = server.hear("listening on");
        server.address = line.split([' ', ';']).nth(2).unwrap().to_owned();
        server
    }

    /// Reads on to the line with these words.
    fn hear(&mut self, words: &str) -> String {
        let mut heard = String::new();
        loop {
            let mut line = String::new();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "the server ended:\n{heard}");
            if line.contains(words) {
                return line;
            }
            heard.push_str(&line);
        }
    }
}

fn swarm(experiment: &Path, server: &str) -> Running {
    let mut swarm = deltafl();
    swarm.arg("swarm").arg(experiment).args(["--insecure", "--server", server]).stderr(Stdio::null());
    Running(swarm.spawn().unwrap())
}

/// The bytes of every checkpoint of a run.
fn checkpoints(run: &Path) -> Vec<Vec<u8>> {
    [1, 2].map(|seed| fs::read(run.join(format!("checkpoint/seed-{seed}.safetensors"))).unwrap()).into()
}

#[test]
fn killed_again_and_again_the_server_ends_with_the_bytes_of_a_simulation() {
    let folder = TempDir::new().unwrap();
    let experiment = experiment(&folder);
    let (simulated, deployed) = (folder.path().join("simulated"), folder.path().join("deployed"));
    let run =
        deltafl().arg("run").arg(&experiment).args(["--quiet", "--out"]).arg(&simulated).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));

    let mut server = Server::start(&experiment, &deployed, "127.0.0.1:0");
    let address = server.address.clone();
    let _swarm = swarm(&experiment, &address);
    for round in ["seed 1, round 1:", "seed 1, round 3:", "seed 2, round 2:"] {
        server.hear(round);
        drop(server); // as by kill -9, somewhere in the next round
        server = Server::start(&experiment, &deployed, &address);
    }
    server.hear("seed 2, round 4:");
    assert!(server.process.0.wait().unwrap().success());
    assert_eq!(checkpoints(&simulated), checkpoints(&deployed));
}

#[test]
fn a_server_of_other_machines_needs_certificates() {
    let folder = TempDir::new().unwrap();
    let anywhere = ["--insecure", "--listen", "0.0.0.0:0", "--out"];
    let served = deltafl()
        .arg("serve")
        .arg(experiment(&folder))
        .args(anywhere)
        .arg(folder.path().join("run"))
        .output()
        .unwrap();
    assert_eq!(served.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&served.stderr).contains("without certificates"));
}

/// Asks for many answers over one connection.
fn ask(server: &Server, path: &str, times: usize) -> TcpStream {
    let mut connection = TcpStream::connect(&server.http).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", server.http);
    connection.write_all(request.repeat(times).as_bytes()).unwrap();
    connection
}

#[test]
fn a_visitor_that_hangs_up_before_its_answers_does_not_end_the_server() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(&experiment(&folder), &folder.path().join("run"), "127.0.0.1:0");
    for _ in 0..5 {
        let mut connection = ask(&server, "/page.js", 400);
        let _ = connection.read(&mut [0]); // the rest comes to nobody: a broken pipe
        let _ = connection.shutdown(Shutdown::Write);
    }
    let mut answer = [0; 8];
    ask(&server, "/healthz", 1).read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1");
}

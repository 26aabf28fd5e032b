//! A folder in which the command runs, and its output.
#![allow(dead_code, unreachable_pub, reason = "without the feature net a part is not used")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
#[cfg(unix)]
use std::time::Duration;

use crate::watchdog;

/// A folder with an experiment, and the command.
pub struct Workdir {
    folder: tempfile::TempDir,
    variables: Vec<(&'static str, &'static str)>,
}

impl Workdir {
    /// Creates a folder with the experiment `x.toml`.
    pub fn with(experiment: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("x.toml"), experiment).unwrap();
        Self { folder, variables: Vec::new() }
    }

    /// Sets a variable in the environment of every command.
    pub fn variable(mut self, name: &'static str, value: &'static str) -> Self {
        self.variables.push((name, value));
        self
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn command(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_deltafl"));
        command.args(words.split_whitespace()).current_dir(self.folder.path()).stdin(Stdio::null());
        command.envs(self.variables.iter().copied());
        command
    }

    pub fn run(&self, words: &str) -> Output {
        self.command(words).output().unwrap()
    }

    /// Runs a command that must succeed, and returns its output.
    pub fn printed(&self, words: &str) -> String {
        let output = self.run(words);
        let said = String::from_utf8_lossy(&output.stderr);
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{words}:\n{printed}\n{said}");
        printed
    }

    /// Runs a command that must reject its input, and returns the message in one line.
    pub fn refusal(&self, words: &str) -> String {
        // miette wraps lines like a terminal.
        let said = self.failure(words, 2);
        said.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ")
    }

    /// Runs a command that must fail with this exit code, and returns its message.
    pub fn failure(&self, words: &str, code: i32) -> String {
        let output = self.run(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{words}: {said}");
        assert!(!said.contains("panicked"), "{words}: {said}");
        said
    }

    /// Starts a long-running command. Its log is detailed, so that a test that exceeds its time
    /// limit can show its state.
    pub fn start(&self, words: &str) -> Running {
        let mut command = self.command(words);
        command.env("DELTAFL_LOG", "info").stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (lines, said) = channel();
        let log = Arc::new(Mutex::new(format!("deltafl {words}\n")));
        let (written, stderr) = (Arc::clone(&log), BufReader::new(child.stderr.take().unwrap()));
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                written.lock().unwrap().push_str(&format!("  {line}\n"));
                let _ = lines.send(line);
            }
        });
        let (shown, id) = (Arc::downgrade(&log), child.id());
        watchdog::report(move || {
            let log = shown.upgrade()?;
            // A process that exits does not drop its children.
            let _ = Command::new("bash").args(["-c", &format!("kill -9 {id}")]).status();
            Some(log.lock().unwrap().clone())
        });
        Running { child, said, _log: log }
    }
}

/// A process that ends with the test, and the lines that it writes to standard error.
pub struct Running {
    pub child: Child,
    said: Receiver<String>,
    /// All of its lines, for a test that exceeds its time limit.
    _log: Arc<Mutex<String>>,
}

impl Running {
    /// Reads until a line contains these words, and returns the text that follows them.
    pub fn hear(&mut self, words: &str) -> String {
        let mut heard = String::new();
        loop {
            let Ok(line) = self.said.recv() else { panic!("the command ended without {words:?}:\n{heard}") };
            if let Some((_, rest)) = line.split_once(words) {
                return rest.trim().to_owned();
            }
            heard.push_str(&line);
            heard.push('\n');
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for a file that a command writes, while the command runs.
#[cfg(unix)]
pub fn wait_for(path: &Path, child: &mut Child) {
    while !path.exists() {
        assert!(child.try_wait().unwrap().is_none(), "the command ended before it wrote {}", path.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Starts a command, interrupts it like Ctrl-C after it has written a file, and returns its output.
#[cfg(unix)]
pub fn interrupted(workdir: &Workdir, words: &str, file: &str) -> Output {
    let mut command = workdir.command(words);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for(&workdir.path(file), &mut child);
    ctrl_c(&child);
    child.wait_with_output().unwrap()
}

/// Sends the signal of Ctrl-C. `kill` is part of every shell, but a separate command only on some
/// machines.
#[cfg(unix)]
pub fn ctrl_c(child: &Child) {
    let kill = format!("kill -INT {}", child.id());
    assert!(Command::new("bash").args(["-c", &kill]).status().unwrap().success());
}

/// The names and bytes of the checkpoints of a run.
pub type Checkpoints = Vec<(String, Vec<u8>)>;

/// Returns the checkpoints of a run.
pub fn checkpoints(run: &Path) -> Checkpoints {
    let mut files: Vec<_> = fs::read_dir(run.join("checkpoint"))
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    files
}

/// Returns status and body of a server's HTTP response.
pub fn asked(address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// A federation for the deployment commands.
pub const DEPLOYED: &str = r#"
name = "deployed"
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
theta = [0.5, 0.25]
quantile = "histogram"
"#;

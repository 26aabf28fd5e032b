//! A headless Chromium, controlled over its debugging pipe with JSON messages that end in a zero
//! byte.
//!
//! Chromium reads descriptor 3 and writes descriptor 4. A shell connects them to its standard input
//! and output, so that no port and no library is needed.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// The time limit for a response or a page load. It is long because a loaded machine is slow.
const PATIENCE: Duration = Duration::from_secs(90);

/// A page in a browser.
pub(crate) struct Browser {
    child: Child,
    requests: ChildStdin,
    answers: Receiver<Value>,
    session: Option<String>,
    next: u64,
    loaded: bool,
    /// The prefix of the addresses that the page may request.
    own: String,
    /// The errors of the page.
    pub(crate) complaints: Vec<String>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Opens a page from the disk. Returns `None` and prints a message if there is no Chromium.
    pub(crate) fn open(page: &Path) -> Option<Self> {
        Self::visit(&format!("file://{}", page.display()))
    }

    /// Opens a page at an address, and records requests to any other host.
    pub(crate) fn visit(url: &str) -> Option<Self> {
        let Some(program) = chromium() else {
            eprintln!("skipped: none of {NAMES:?} is in PATH (apt-get install chromium)");
            return None;
        };
        let profile = tempfile::tempdir().unwrap();
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 >/dev/null 2>&1", "sh"])
            .arg(program)
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
                "--remote-debugging-pipe",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let requests = child.stdin.take().unwrap();
        let answers = messages(child.stdout.take().unwrap());
        let mut browser = Self {
            child,
            requests,
            answers,
            session: None,
            next: 0,
            loaded: false,
            own: url.to_owned(),
            complaints: Vec::new(),
            _profile: profile,
        };
        let target = browser.ask("Target.createTarget", json!({ "url": "about:blank" }));
        let attached =
            browser.ask("Target.attachToTarget", json!({ "targetId": target["targetId"], "flatten": true }));
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page.enable", "Runtime.enable", "Log.enable", "Network.enable"] {
            browser.ask(domain, json!({}));
        }
        browser.screen(1280, 900);
        browser.ask("Page.navigate", json!({ "url": url }));
        let until = Instant::now() + PATIENCE;
        while !browser.loaded {
            let event = browser.receive(until, "the page to load");
            browser.listen(&event);
        }
        browser.settle();
        Some(browser)
    }

    /// Waits until every chart is drawn. Changes caused by an event begin with the next frame, so
    /// two frames pass first.
    pub(crate) fn settle(&mut self) {
        self.value(
            "new Promise((done) => { const look = () => document.documentElement.dataset.drawn === 'true' \
             ? done(true) : requestAnimationFrame(look); requestAnimationFrame(() => requestAnimationFrame(look)); })",
        );
    }

    /// Returns the value of an expression, with promises awaited.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let request = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.ask("Runtime.evaluate", request);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Returns the text of an element.
    pub(crate) fn text(&mut self, selector: &str) -> String {
        let found = self.value(&format!("document.querySelector({})?.innerText ?? ''", json!(selector)));
        found.as_str().unwrap_or_default().to_owned()
    }

    /// Presses a key on the focused element.
    pub(crate) fn press(&mut self, key: &str, code: u32) {
        for kind in ["rawKeyDown", "keyUp"] {
            self.ask(
                "Input.dispatchKeyEvent",
                json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code }),
            );
        }
        self.settle();
    }

    /// Types into the focused element.
    pub(crate) fn enter(&mut self, text: &str) {
        self.ask("Input.insertText", json!({ "text": text }));
        self.settle();
    }

    /// Moves the pointer.
    pub(crate) fn point_at(&mut self, x: f64, y: f64) {
        self.ask("Input.dispatchMouseEvent", json!({ "type": "mouseMoved", "x": x, "y": y }));
    }

    /// Sets the size of the screen.
    pub(crate) fn screen(&mut self, width: u32, height: u32) {
        let screen = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.ask("Emulation.setDeviceMetricsOverride", screen);
    }

    /// Sets the preferred colour scheme: `light` or `dark`.
    pub(crate) fn prefer(&mut self, scheme: &str) {
        let feature = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.ask("Emulation.setEmulatedMedia", json!({ "features": feature }));
        self.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))");
        self.settle();
    }

    /// Returns the whole page as PNG.
    pub(crate) fn picture(&mut self) -> Vec<u8> {
        let answer =
            self.ask("Page.captureScreenshot", json!({ "captureBeyondViewport": true, "format": "png" }));
        STANDARD.decode(answer["data"].as_str().unwrap()).unwrap()
    }

    /// Returns the page as PDF.
    pub(crate) fn printed(&mut self) -> Vec<u8> {
        let answer = self.ask("Page.printToPDF", json!({ "printBackground": true }));
        STANDARD.decode(answer["data"].as_str().unwrap()).unwrap()
    }

    /// Sends a request and waits for its response.
    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let id = self.next;
        let mut request = json!({ "id": id, "method": method, "params": params });
        if let Some(session) = &self.session {
            request["sessionId"] = json!(session);
        }
        let request = request.to_string();
        self.requests.write_all(request.as_bytes()).and_then(|()| self.requests.write_all(&[0])).unwrap();
        let until = Instant::now() + PATIENCE;
        loop {
            let message = self.receive(until, &request);
            if message["id"] == json!(id) {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].clone();
            }
            self.listen(&message);
        }
    }

    /// Returns the next message, which must arrive before the deadline.
    fn receive(&self, until: Instant, awaited: &str) -> Value {
        let left = until.saturating_duration_since(Instant::now());
        self.answers.recv_timeout(left).unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout => {
                panic!("waited {} s for {awaited}; complaints: {:?}", PATIENCE.as_secs(), self.complaints)
            }
            RecvTimeoutError::Disconnected => panic!("the browser exited before {awaited}"),
        })
    }

    /// Records errors, and all network requests of the page.
    fn listen(&mut self, event: &Value) {
        let params = &event["params"];
        self.loaded |= event["method"] == "Page.loadEventFired";
        let url = params["request"]["url"].as_str().unwrap_or_default();
        let wrong = match event["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" => true,
            "Runtime.consoleAPICalled" => params["type"] == "error" || params["type"] == "warning",
            "Log.entryAdded" => params["entry"]["level"] == "error",
            "Network.requestWillBeSent" => {
                !["file:", "data:", "blob:", "about:", &self.own].iter().any(|own| url.starts_with(own))
            }
            _ => false,
        };
        if wrong {
            self.complaints.push(event.to_string());
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the messages of the browser on a separate thread, so that waiting for them can time out.
fn messages(pipe: ChildStdout) -> Receiver<Value> {
    let (sender, messages) = channel();
    std::thread::spawn(move || {
        let pipe = BufReader::new(pipe).split(0);
        let parsed = pipe.map_while(|bytes| serde_json::from_slice(&bytes.ok()?).ok());
        // Ends with the browser or with the test.
        parsed.map_while(|message| sender.send(message).ok()).for_each(drop);
    });
    messages
}

fn chromium() -> Option<PathBuf> {
    let folders: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH")?).collect();
    NAMES
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)))
        .find(|path| path.is_file())
}

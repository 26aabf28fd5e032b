//! An HTTP download that resumes after an interruption and is verified by its hash.
//!
//! ```text
//! NAME.part          the bytes received so far
//! NAME.part.etag     the version of the file, for If-Range
//! NAME               the complete file
//! NAME.sha256        its hash, recorded on the first download
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use miette::{Diagnostic, Result};
use sha2::{Digest, Sha256};
use ureq::http::{Response, StatusCode, header};
use ureq::{Agent, Body};

/// The number of consecutive failures before the download is abandoned. Any progress resets the
/// count.
const ATTEMPTS: u32 = 5;

/// A file to fetch.
pub(super) struct Download {
    pub(super) url: String,
    pub(super) target: PathBuf,
    pub(super) quiet: bool,
}

/// The reason why the hash of a file is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// The user specified the hash.
    Pinned,
    /// The hash equals that of the first download.
    Recorded,
    /// This is the first download.
    FirstUse,
}

/// The reason why a download failed.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub(super) enum DownloadError {
    #[error("{url}: the server returned {status}")]
    #[diagnostic(help(
        "the publisher may have moved the file: --mirror URL fetches it from another location"
    ))]
    Status { url: String, status: StatusCode },
    #[error("{url}: the connection failed {ATTEMPTS} times, after {received} bytes: {source}")]
    #[diagnostic(help("run the command again to resume the download"))]
    Broken { url: String, received: u64, source: io::Error },
    #[error("{url}: {source}")]
    #[diagnostic(help("check the network; HTTPS_PROXY or ALL_PROXY sets a proxy"))]
    Unreachable { url: String, source: Box<ureq::Error> },
    #[error("{name}: SHA-256 is {got}, expected {expected}")]
    #[diagnostic(help("the file was deleted; it changed at its source or in transit"))]
    Hash { name: String, expected: String, got: String },
    #[error("{path}: {source}")]
    File { path: String, source: io::Error },
}

impl Download {
    /// Downloads the file unless it exists, and verifies its hash.
    pub(super) fn fetch(&self, pinned: Option<String>) -> Result<(String, Trust), DownloadError> {
        if !self.target.exists() {
            self.receive()?;
        }
        let got = self.on_disk(sha256(&self.target))?;
        let record = self.beside("sha256");
        let (expected, trust) = match (pinned, fs::read_to_string(&record)) {
            (Some(hex), _) => (hex.to_ascii_lowercase(), Trust::Pinned),
            (None, Ok(hex)) => (hex.trim().to_owned(), Trust::Recorded),
            (None, Err(_)) => (got.clone(), Trust::FirstUse),
        };
        if got != expected {
            self.on_disk(fs::remove_file(&self.target))?;
            return Err(DownloadError::Hash { name: self.name(), expected, got });
        }
        self.on_disk(fs::write(&record, format!("{got}\n")))?;
        Ok((got, trust))
    }

    /// Receives the file in as many requests as required.
    fn receive(&self) -> Result<(), DownloadError> {
        let agent: Agent = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(Duration::from_secs(30)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            .user_agent(concat!("deltafl/", env!("CARGO_PKG_VERSION")))
            .build()
            .into();
        let mut failures = 0;
        loop {
            let before = self.received();
            match self.attempt(&agent) {
                Ok(()) => return Ok(()),
                Err(DownloadError::Broken { url, received, source }) => {
                    failures = if received > before { 1 } else { failures + 1 };
                    if failures >= ATTEMPTS {
                        return Err(DownloadError::Broken { url, received, source });
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn attempt(&self, agent: &Agent) -> Result<(), DownloadError> {
        let mut received = self.received();
        let validator = fs::read_to_string(self.beside("part.etag")).unwrap_or_default();
        if validator.is_empty() {
            received = 0; // a partial file of unknown version is useless
        }
        let mut request = agent.get(&self.url);
        if received > 0 {
            request = request
                .header(header::RANGE, format!("bytes={received}-"))
                .header(header::IF_RANGE, validator);
        }
        let response = request.call().map_err(|source| DownloadError::Unreachable {
            url: self.url.clone(),
            source: Box::new(source),
        })?;
        let status = response.status();
        let start = match status {
            StatusCode::OK => 0,
            StatusCode::PARTIAL_CONTENT if starts_at(&response, received) => received,
            // The partial file does not match the file on the server: start again.
            StatusCode::RANGE_NOT_SATISFIABLE | StatusCode::PARTIAL_CONTENT if received > 0 => {
                self.on_disk(fs::remove_file(self.beside("part")))?;
                let source = io::Error::other("the file on the server has changed");
                return Err(DownloadError::Broken { url: self.url.clone(), received: 0, source });
            }
            _ => return Err(DownloadError::Status { url: self.url.clone(), status }),
        };
        self.on_disk(fs::write(self.beside("part.etag"), validator_of(&response)))?;
        self.store(response, start)?;
        self.on_disk(fs::rename(self.beside("part"), &self.target))?;
        self.on_disk(fs::remove_file(self.beside("part.etag")))
    }

    /// Writes the body to the partial file, starting at `start`.
    fn store(&self, response: Response<Body>, start: u64) -> Result<(), DownloadError> {
        let length: Option<u64> =
            header_text(&response, header::CONTENT_LENGTH).and_then(|text| text.parse().ok());
        let total = length.map(|length| start + length);
        let path = self.beside("part");
        let mut options = OpenOptions::new();
        let mut file = self.on_disk(options.create(true).write(true).truncate(start == 0).open(&path))?;
        self.on_disk(file.set_len(start).and_then(|()| io::Seek::seek(&mut file, io::SeekFrom::End(0))))?;
        let bar = self.bar(total, start);
        let mut body = response.into_body().into_reader();
        let mut buffer = vec![0; 1 << 17];
        let mut received = start;
        let broken = |received, source| DownloadError::Broken { url: self.url.clone(), received, source };
        loop {
            match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => {
                    self.on_disk(file.write_all(&buffer[..read]))?;
                    received += read as u64;
                    bar.inc(read as u64);
                }
                Err(source) => return Err(broken(received, source)),
            }
        }
        if total.is_some_and(|total| received < total) {
            return Err(broken(received, io::ErrorKind::UnexpectedEof.into()));
        }
        bar.finish_and_clear();
        self.on_disk(file.sync_all())
    }

    fn bar(&self, total: Option<u64>, start: u64) -> ProgressBar {
        if self.quiet || !io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let style = "{msg} {bar:30} {bytes}/{total_bytes} · {bytes_per_sec} · {eta} left";
        let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(total.unwrap_or_default()).with_style(style.progress_chars("━╸─"));
        bar.set_message(self.name());
        bar.with_position(start)
    }

    /// Returns the size of the partial file.
    fn received(&self) -> u64 {
        fs::metadata(self.beside("part")).map_or(0, |metadata| metadata.len())
    }

    /// Returns the path of the file `NAME.suffix`.
    fn beside(&self, suffix: &str) -> PathBuf {
        self.target.with_file_name(format!("{}.{suffix}", self.name()))
    }

    fn name(&self) -> String {
        self.target.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn on_disk<T>(&self, result: io::Result<T>) -> Result<T, DownloadError> {
        result.map_err(|source| DownloadError::File { path: self.target.display().to_string(), source })
    }
}

fn header_text(response: &Response<Body>, name: header::HeaderName) -> Option<&str> {
    response.headers().get(name)?.to_str().ok()
}

/// Returns whether a partial response begins at this byte.
fn starts_at(response: &Response<Body>, byte: u64) -> bool {
    let range = header_text(response, header::CONTENT_RANGE).and_then(|range| range.strip_prefix("bytes "));
    range.and_then(|range| range.split('-').next()?.parse().ok()) == Some(byte)
}

/// Returns the identifier of this version of the file: a strong entity tag, or its date.
fn validator_of(response: &Response<Body>) -> String {
    let tag = header_text(response, header::ETAG).filter(|tag| !tag.starts_with("W/"));
    tag.or_else(|| header_text(response, header::LAST_MODIFIED)).unwrap_or_default().to_owned()
}

/// Returns the SHA-256 of a file in hexadecimal.
fn sha256(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 17];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            read => hasher.update(&buffer[..read]),
        }
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    const FILE: &[u8] = b"The quick brown fox jumps over the lazy dog";
    const FILE_HASH: &str = "d7a8fbb307d7809469ca9abcb0082e4f8d5651e46d3cdb762d02d0bf37c9e592";

    /// The server's response to one request.
    #[derive(Clone, Copy)]
    enum Answer {
        /// The requested bytes.
        Whole,
        /// Announces all bytes and disconnects after this many.
        Cut(usize),
        NotFound,
        /// Another version of the file, regardless of the requested range.
        Changed(&'static [u8]),
    }

    /// Starts a server that answers one request per entry and then stops. Returns its URL and the
    /// requests.
    fn serve(answers: Vec<Answer>) -> (String, mpsc::Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/fox.txt", listener.local_addr().unwrap());
        let (sender, requests) = mpsc::channel();
        thread::spawn(move || {
            for answer in answers {
                let (stream, _) = listener.accept().unwrap();
                sender.send(respond(stream, answer)).unwrap();
            }
        });
        (url, requests)
    }

    fn respond(mut stream: TcpStream, answer: Answer) -> String {
        let mut request = String::new();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while !request.ends_with("\r\n\r\n") {
            reader.read_line(&mut request).unwrap();
        }
        let lower = request.to_ascii_lowercase();
        let range = lower.split("range: bytes=").nth(1).and_then(|rest| rest.split('-').next()?.parse().ok());
        let start: usize = range.unwrap_or_default();
        let (head, body) = match answer {
            Answer::NotFound => ("404 Not Found".to_owned(), &b"gone"[..]),
            Answer::Changed(file) => ("200 OK\r\nETag: \"v2\"".to_owned(), file),
            Answer::Whole | Answer::Cut(_) if start > 0 => {
                let range = format!("Content-Range: bytes {start}-{}/{}", FILE.len() - 1, FILE.len());
                (format!("206 Partial Content\r\nETag: \"v1\"\r\n{range}"), &FILE[start..])
            }
            Answer::Whole | Answer::Cut(_) => ("200 OK\r\nETag: \"v1\"".to_owned(), FILE),
        };
        let sent = if let Answer::Cut(sent) = answer { &body[..sent.min(body.len())] } else { body };
        let head = format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(sent).unwrap();
        request
    }

    fn download(url: String, dir: &tempfile::TempDir) -> Download {
        Download { url, target: dir.path().join("fox.txt"), quiet: true }
    }

    #[test]
    fn an_interrupted_download_is_resumed() {
        let dir = tempfile::tempdir().unwrap();
        let (url, requests) = serve(vec![Answer::Cut(10), Answer::Cut(7), Answer::Whole]);
        let (hash, trust) = download(url, &dir).fetch(None).unwrap();
        assert_eq!((hash.as_str(), trust), (FILE_HASH, Trust::FirstUse));
        assert_eq!(fs::read(dir.path().join("fox.txt")).unwrap(), FILE);
        let requests: Vec<String> = requests.iter().map(|request| request.to_ascii_lowercase()).collect();
        assert!(!requests[0].contains("range:"));
        assert!(requests[1].contains("range: bytes=10-") && requests[1].contains("if-range: \"v1\""));
        assert!(requests[2].contains("range: bytes=17-"));
    }

    #[test]
    fn a_file_that_changed_is_downloaded_from_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let (url, _requests) = serve(vec![Answer::Cut(10), Answer::Changed(b"another file")]);
        download(url, &dir).fetch(None).unwrap();
        assert_eq!(fs::read(dir.path().join("fox.txt")).unwrap(), b"another file");
    }

    #[test]
    fn a_download_that_keeps_failing_is_abandoned_and_its_bytes_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut answers = vec![Answer::Cut(10)];
        answers.extend([Answer::Cut(0); 4]);
        let (url, _requests) = serve(answers);
        let error = download(url, &dir).fetch(None).unwrap_err();
        assert!(matches!(error, DownloadError::Broken { received: 10, .. }), "{error}");
        assert_eq!(fs::read(dir.path().join("fox.txt.part")).unwrap(), &FILE[..10]);
        assert!(!dir.path().join("fox.txt").exists());
    }

    #[test]
    fn a_wrong_hash_deletes_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let (url, _requests) = serve(vec![Answer::Whole]);
        let error = download(url, &dir).fetch(Some("00".repeat(32))).unwrap_err();
        assert!(matches!(error, DownloadError::Hash { ref got, .. } if got == FILE_HASH), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_hash_of_the_first_download_is_verified_later() {
        let dir = tempfile::tempdir().unwrap();
        let (url, _requests) = serve(vec![Answer::Whole, Answer::Changed(b"tampered")]);
        let download = download(url, &dir);
        download.fetch(None).unwrap();
        assert_eq!(download.fetch(None).unwrap().1, Trust::Recorded);
        fs::remove_file(dir.path().join("fox.txt")).unwrap();
        assert!(matches!(download.fetch(None), Err(DownloadError::Hash { .. })));
        assert_eq!(fs::read_to_string(dir.path().join("fox.txt.sha256")).unwrap().trim(), FILE_HASH);
    }

    #[test]
    fn a_missing_file_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let (url, _requests) = serve(vec![Answer::NotFound]);
        let error = download(url.clone(), &dir).fetch(None).unwrap_err();
        assert_eq!(error.to_string(), format!("{url}: the server returned 404 Not Found"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

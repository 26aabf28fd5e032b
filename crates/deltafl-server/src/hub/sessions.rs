//! The states of all sessions, for operators and for tests, and the time limit within which a
//! device becomes ready.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Address, ConnectedDevice, Hub, Limits};
use crate::refusal::Refusal;

/// The longest pause between two checks of the time limits.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The state of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SessionState {
    /// The server sent a Welcome or a new roster, and the device has not answered yet.
    Joining,
    /// The device waits for its turn to fetch the newest params.
    Queued,
    /// The device fetches the roster or params before it becomes ready.
    Fetching,
    /// The device can be drawn.
    Ready,
    /// The device declined to participate for now.
    Declined,
    /// The device participates in the current round.
    InRound,
}

impl SessionState {
    const ALL: [Self; 6] =
        [Self::Ready, Self::InRound, Self::Declined, Self::Joining, Self::Queued, Self::Fetching];
}

impl fmt::Display for SessionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Joining => "joining",
            Self::Queued => "queued for the newest params",
            Self::Fetching => "fetching",
            Self::Ready => "ready",
            Self::Declined => "declined",
            Self::InRound => "in a round",
        })
    }
}

/// The session of one device at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionStatus {
    /// The name of the device.
    pub device: String,
    /// Its state.
    pub state: SessionState,
    /// How long the session has been in this state.
    pub lasting: Duration,
}

impl fmt::Display for SessionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} for {:.1} s", self.device, self.state, self.lasting.as_secs_f64())
    }
}

/// All sessions of a server at one moment, in the order of the roster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionList {
    /// Devices on the roster that are not revoked.
    pub enrolled: usize,
    /// Whether the server is shutting down.
    pub is_closed: bool,
    /// The devices that are connected.
    pub sessions: Vec<SessionStatus>,
}

impl SessionList {
    /// Returns the number of sessions in this state.
    pub fn count(&self, state: SessionState) -> usize {
        self.sessions.iter().filter(|session| session.state == state).count()
    }

    /// Returns how many sessions are in each state, without the names of devices.
    pub fn summary(&self) -> String {
        let counted = SessionState::ALL.map(|state| (self.count(state), state));
        let present = counted.into_iter().filter(|(count, _)| *count > 0);
        let counts: Vec<String> = present.map(|(count, state)| format!("{count} {state}")).collect();
        let closed = if self.is_closed { " (the server is shutting down)" } else { "" };
        let colon = if counts.is_empty() { "" } else { ": " };
        let (connected, enrolled) = (self.sessions.len(), self.enrolled);
        format!("{connected} of {enrolled} devices connected{colon}{}{closed}", counts.join(", "))
    }
}

/// The summary in the first line, then one line for each session.
impl fmt::Display for SessionList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.summary())?;
        self.sessions.iter().try_for_each(|session| write!(f, "\n  {session}"))
    }
}

/// Reads the states of the sessions of a server. It outlives the server's handle.
#[derive(Clone, Debug)]
pub struct SessionMonitor(pub(crate) Weak<Hub>);

impl SessionMonitor {
    /// Returns the sessions, or `None` if the server no longer exists.
    pub fn sessions(&self) -> Option<SessionList> {
        self.0.upgrade().map(|hub| hub.sessions())
    }
}

/// The progress of a session towards its first round, and the time limit for it.
#[derive(Debug)]
pub(super) struct SessionProgress {
    state: SessionState,
    since: Instant,
    /// Calls that wait for their turn to fetch the newest params.
    queued: u32,
    /// The time at which the current round began to involve the device.
    in_round: Option<Instant>,
    /// The time limit for the device to become ready, without its time in the queue and in rounds.
    allowance: Duration,
    /// The deadline, or `None` while the time limit is paused.
    deadline: Option<Instant>,
}

impl SessionProgress {
    /// Creates the progress of a device with this time limit to become ready.
    pub(super) fn new(allowance: Duration) -> Self {
        let now = Instant::now();
        Self {
            state: SessionState::Joining,
            since: now,
            queued: 0,
            in_round: None,
            allowance,
            deadline: Some(now + allowance),
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.state == SessionState::Ready
    }

    fn enter(&mut self, state: SessionState) {
        if self.state != state {
            (self.state, self.since) = (state, Instant::now());
        }
        self.restart();
    }

    /// Restarts the time limit, or stops it if it does not apply.
    fn restart(&mut self) {
        let answered = matches!(self.state, SessionState::Ready | SessionState::Declined);
        let runs = !answered && self.queued == 0 && self.in_round.is_none();
        self.deadline = runs.then(|| Instant::now() + self.allowance);
    }

    /// The device sent Ready for the current roster.
    pub(super) fn set_ready(&mut self) {
        self.enter(SessionState::Ready);
    }

    /// The device declined.
    pub(super) fn set_declined(&mut self) {
        self.enter(SessionState::Declined);
    }

    /// The device must become ready again within this time.
    pub(super) fn restart_joining(&mut self, allowance: Duration) {
        self.allowance = allowance;
        self.enter(if self.queued > 0 { SessionState::Queued } else { SessionState::Joining });
    }

    /// The device sent Ready for another roster. Its time limit continues.
    pub(super) fn set_outdated(&mut self) {
        if matches!(self.state, SessionState::Ready | SessionState::Declined) {
            self.enter(SessionState::Joining);
        }
    }

    /// Returns the state and its start.
    fn displayed_state(&self) -> (SessionState, Instant) {
        self.in_round.map_or((self.state, self.since), |since| (SessionState::InRound, since))
    }
}

/// State that the hub shares with the task of a session.
#[derive(Debug, Default)]
pub(super) struct SharedSession {
    pub(super) closed: Notify,
    /// Whether the connection ends with the session.
    pub(super) disconnects: AtomicBool,
    /// Whether the end of the session is an event for the round loop.
    pub(super) in_round: AtomicBool,
}

impl SharedSession {
    /// Ends the session. The device may open another on the same connection.
    pub(super) fn close_session(&self) {
        self.closed.notify_one();
    }

    /// Ends the session and the connection.
    pub(super) fn close_connection(&self) {
        self.disconnects.store(true, Ordering::Relaxed);
        self.close_session();
    }
}

impl Limits {
    /// Returns the time limit for a device that must fetch this many bytes to become ready.
    pub(super) fn ready_allowance(&self, bytes: u64) -> Duration {
        self.ready_within + Duration::from_secs_f64(bytes as f64 / f64::from(self.min_rate.max(1)))
    }
}

impl Hub {
    /// Returns the states of all sessions.
    pub(crate) fn sessions(&self) -> SessionList {
        let connected = self.connected();
        let (entries, now) = (connected.known.roster.entries(), Instant::now());
        let mut devices: Vec<_> = connected.devices.iter().collect();
        devices.sort_unstable_by_key(|(device, _)| **device);
        let status = |(&device, peer): (&u32, &ConnectedDevice)| {
            let (state, since) = peer.progress.displayed_state();
            let name = entries.get(device as usize).map_or("(not on the roster)", |entry| &entry.name);
            SessionStatus { device: name.to_owned(), state, lasting: now.duration_since(since) }
        };
        SessionList {
            enrolled: entries.iter().filter(|entry| !entry.revoked).count(),
            is_closed: connected.is_closed,
            sessions: devices.into_iter().map(status).collect(),
        }
    }

    /// Records that a device fetches the roster or params.
    pub(crate) fn note_fetch(&self, device: u32) {
        if let Some(peer) = self.connected().devices.get_mut(&device)
            && peer.progress.state == SessionState::Joining
        {
            // The time limit continues, so that repeated fetches do not extend it.
            (peer.progress.state, peer.progress.since) = (SessionState::Fetching, Instant::now());
        }
    }

    /// Pauses the time limit of a device until the result is dropped, while it waits for its turn
    /// to fetch this many bytes.
    pub(super) fn queue(&self, device: u32, bytes: u64) -> Queued<'_> {
        let mut connected = self.connected();
        let roster = connected.known.id.len;
        let peer = connected.devices.get_mut(&device);
        let session = peer.map(|peer| {
            peer.progress.queued += 1;
            peer.progress.allowance = self.limits.ready_allowance(roster + bytes);
            if !matches!(peer.progress.state, SessionState::Ready | SessionState::Declined) {
                peer.progress.enter(SessionState::Queued);
            }
            Address { device, session: peer.session }
        });
        Queued { hub: self, session }
    }

    /// Marks devices as participants of a round until the result is dropped. Their time limits are
    /// paused meanwhile, because a computing device reads a new roster afterwards.
    pub(crate) fn engage(self: &Arc<Self>, members: impl Iterator<Item = Address>) -> Engaged {
        let (members, now) = (members.collect::<Vec<_>>(), Instant::now());
        let mut connected = self.connected();
        for member in &members {
            if let Some(peer) = connected.peer_mut(*member) {
                peer.shared.in_round.store(true, Ordering::Relaxed);
                peer.progress.in_round = Some(now);
                peer.progress.restart();
            }
        }
        Engaged { hub: Arc::clone(self), members }
    }

    /// Disconnects the devices that did not become ready in time.
    fn expel_overdue(&self) {
        let (mut connected, now) = (self.connected(), Instant::now());
        for (&device, peer) in &mut connected.devices {
            if peer.progress.deadline.is_none_or(|deadline| now < deadline) {
                continue;
            }
            peer.progress.deadline = None;
            let (state, seconds) = (peer.progress.state, peer.progress.allowance.as_secs_f64());
            tracing::warn!(device, %state, seconds, "a device did not become ready in time: disconnected");
            self.refusals.count(Refusal::NotReady);
            peer.shared.close_connection();
        }
    }
}

/// Disconnects devices that do not become ready in time, until the hub is closed or dropped.
pub(crate) async fn keep_time_limits(hub: Weak<Hub>) {
    loop {
        let Some(pause) = hub.upgrade().map(|hub| hub.limits.ready_within / 8) else { return };
        tokio::time::sleep(pause.clamp(Duration::from_millis(10), LONGEST_PAUSE)).await;
        match hub.upgrade() {
            Some(hub) if !hub.is_closed() => hub.expel_overdue(),
            _ => return,
        }
    }
}

/// A device that waits for its turn to fetch the newest params.
pub(super) struct Queued<'h> {
    hub: &'h Hub,
    session: Option<Address>,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        let mut connected = self.hub.connected();
        let Some(peer) = self.session.and_then(|session| connected.peer_mut(session)) else { return };
        peer.progress.queued -= 1;
        if peer.progress.queued == 0 && peer.progress.state == SessionState::Queued {
            peer.progress.enter(SessionState::Fetching);
        }
    }
}

/// Devices that participate in a round.
pub(crate) struct Engaged {
    hub: Arc<Hub>,
    members: Vec<Address>,
}

impl Drop for Engaged {
    fn drop(&mut self) {
        let mut connected = self.hub.connected();
        for member in &self.members {
            if let Some(peer) = connected.peer_mut(*member) {
                peer.shared.in_round.store(false, Ordering::Relaxed);
                peer.progress.in_round = None;
                peer.progress.restart();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_time_limit_runs_until_a_device_answers_but_not_in_the_queue_and_not_in_rounds() {
        let mut progress = SessionProgress::new(LONG);
        assert!(progress.deadline.is_some());
        progress.queued = 1;
        progress.enter(SessionState::Queued);
        assert_eq!(progress.deadline, None);
        progress.queued = 0;
        progress.enter(SessionState::Fetching);
        assert!(progress.deadline.is_some());
        progress.set_ready();
        assert_eq!((progress.deadline, progress.is_ready()), (None, true));
        progress.in_round = Some(Instant::now());
        progress.restart_joining(LONG);
        assert_eq!((progress.deadline, progress.displayed_state().0), (None, SessionState::InRound));
        progress.in_round = None;
        progress.restart();
        assert!(progress.deadline.is_some(), "the round is over, and the roster is another one");
        progress.set_declined();
        assert_eq!((progress.deadline, progress.displayed_state().0), (None, SessionState::Declined));
    }

    #[test]
    fn sessions_are_listed_with_a_summary() {
        let session = |device: &str, state| SessionStatus {
            device: device.to_owned(),
            state,
            lasting: Duration::from_millis(1500),
        };
        let sessions = vec![session("a", SessionState::Ready), session("b", SessionState::Joining)];
        let list = SessionList { enrolled: 3, is_closed: true, sessions };
        let expected = "2 of 3 devices connected: 1 ready, 1 joining (the server is shutting down)\n  \
                        a: ready for 1.5 s\n  b: joining for 1.5 s";
        assert_eq!(list.to_string(), expected);
    }
}

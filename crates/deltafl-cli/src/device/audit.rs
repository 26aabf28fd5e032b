//! `deltafl device audit`: whether a server showed this device, or two devices, one and the same.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use deltafl_device::{
    AnswerCount, Conflict, DeviceState, Digest, PrivacyLimit, SpentPrivacy, Transcript, TranscriptEvent,
    conflicts,
};
use deltafl_wire::identity::hex;
use deltafl_wire::roster_log::{LoggedRoster, versions_outside};
use miette::{IntoDiagnostic, Result};
use serde_json::json;

use crate::error::bad_input;

/// Check the transcript of a device, or compare it with that of another or with a log of rosters
///
/// A device writes down what its server shows it: rosters, questions, cohorts, survivors. Two
/// owners who compare their transcripts find out whether the server showed both the same. The
/// authority keeps a log of the rosters that it has signed, rosters.jsonl in its folder, and a
/// device keeps one in its state. The command accepts both as transcripts. Nothing in a transcript
/// or a log comes from a device's data.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  deltafl device audit identity/state/transcript.jsonl\n  deltafl device audit mine.jsonl neighbour.jsonl\n  deltafl device audit identity/state/transcript.jsonl rosters.jsonl"
)]
pub(crate) struct Args {
    /// The transcript of a device: transcript.jsonl in its state folder
    transcript: PathBuf,
    /// The transcript of another device of the same federation, or the log of the authority:
    /// rosters.jsonl
    other: Option<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// A transcript with an unbroken chain, or a log of rosters with valid signatures.
struct Read {
    head: Digest,
    events: Vec<TranscriptEvent>,
    /// The rosters of a log.
    log: Option<Vec<LoggedRoster>>,
}

impl Read {
    fn open(path: &Path) -> Result<Self> {
        if let Ok(log) = LoggedRoster::read(path)
            && let Some(last) = log.last()
        {
            let event = |roster: &LoggedRoster| TranscriptEvent::Roster {
                version: roster.version,
                hash: roster.hash.into(),
                predecessor: roster.previous.map(|previous| (previous.version, previous.hash.into())),
            };
            let (head, events) = (last.hash.into(), log.iter().map(event).collect());
            return Ok(Self { head, events, log: Some(log) });
        }
        let read = Transcript::read(path);
        let (head, events) =
            read.map_err(|e| bad_input("invalid transcript or log of rosters").because(e))?;
        Ok(Self { head, events, log: None })
    }

    /// Returns the rosters that this log of rosters excludes, although `other` accepted them.
    fn excluded(&self, other: &Self) -> Vec<Conflict> {
        let accepted = other.events.iter().filter_map(|event| match event {
            TranscriptEvent::Roster { version, hash, .. } => Some((*version, *hash)),
            _ => None,
        });
        let (log, accepted) = (self.log.as_deref().unwrap_or_default(), accepted.collect::<BTreeMap<_, _>>());
        let versions: Vec<u64> = accepted.keys().copied().collect();
        let conflict = |version| Conflict {
            about: format!("roster {version}"),
            one: accepted[&version].to_string(),
            other: "not in the log of rosters".to_owned(),
        };
        versions_outside(log, &versions).into_iter().map(conflict).collect()
    }

    /// Rosters, key set-ups and sums in it.
    fn counts(&self) -> (usize, usize, usize) {
        let of = |kind: fn(&TranscriptEvent) -> bool| self.events.iter().filter(|event| kind(event)).count();
        (
            of(|event| matches!(event, TranscriptEvent::Roster { .. })),
            of(|event| matches!(event, TranscriptEvent::Joined { .. })),
            of(|event| matches!(event, TranscriptEvent::Survivors { .. })),
        )
    }

    fn sessions(&self) -> BTreeSet<&str> {
        let sessions = self.events.iter().filter_map(|event| match event {
            TranscriptEvent::Joined { setup: (session, _), .. } => Some(session.as_str()),
            _ => None,
        });
        sessions.collect()
    }

    fn print(&self, path: &Path) {
        let (rosters, setups, sums) = self.counts();
        println!("{}: {} lines, unbroken", path.display(), self.events.len());
        if let Some(last) = self.log.as_ref().and_then(|log| log.last()) {
            println!("  {rosters} rosters, signed by authority {}", &hex(&last.authority)[..16]);
            println!("  head {}", self.head);
            return;
        }
        println!(
            "  {rosters} rosters, {setups} key set-ups, {sums} sums, {} sessions",
            self.sessions().len()
        );
        println!("  head {}", self.head);
        for (authority, answers) in answers_beside(path) {
            println!(
                "  {} answers under authority {}, {} of them on the last day",
                answers.total,
                &hex(&authority)[..16],
                answers.on_day
            );
        }
        for (authority, spent) in privacy_beside(path) {
            let delta = PrivacyLimit::default().delta;
            let (authority, epsilon) = (hex(&authority), spent.epsilon(delta));
            match spent.exact {
                0 => println!(
                    "  privacy spent under authority {}: ε = {epsilon:.3} at δ = {}",
                    &authority[..16],
                    delta.get()
                ),
                exact => println!(
                    "  {exact} answers without noise under authority {}: ε is infinite",
                    &authority[..16]
                ),
            }
        }
        for event in &self.events {
            if let TranscriptEvent::Refused { setup: (_, setup), reason } = event {
                println!("  set-up {setup}: left, because {reason}");
            }
        }
    }
}

/// Returns the answers that the device of a transcript has counted, by authority. A copy of a
/// transcript in another folder has none.
fn answers_beside(transcript: &Path) -> BTreeMap<[u8; 32], AnswerCount> {
    let folder = transcript.parent().unwrap_or(Path::new("."));
    DeviceState::read_answers(folder).unwrap_or_default()
}

/// Returns the privacy that the device of a transcript has spent, by authority.
fn privacy_beside(transcript: &Path) -> BTreeMap<[u8; 32], SpentPrivacy> {
    let folder = transcript.parent().unwrap_or(Path::new("."));
    DeviceState::read_privacy(folder).unwrap_or_default()
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let one = Read::open(&args.transcript)?;
    let other = args.other.as_deref().map(Read::open).transpose()?;
    let events = other.as_ref().map_or(&[][..], |other| &other.events);
    let (common, mut found) = conflicts(&one.events, events);
    if let Some(other) = &other {
        found.extend(other.excluded(&one));
        found.extend(one.excluded(other));
    }
    if args.json {
        print_json(&args.transcript, &one, common, &found)?;
    } else {
        one.print(&args.transcript);
        if let (Some(other), Some(path)) = (&other, &args.other) {
            other.print(path);
            println!("\n{common} records in both, {} of them different", found.len());
            if common == 0 {
                println!("The two devices were never in one round: compare others, or later.");
            }
        }
        for Conflict { about, one, other } in &found {
            println!("\n{about}\n  shown as {one}\n  and as   {other}");
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    // Not an error of the caller: exit code 1.
    Err(miette::miette!(
        help = "take both devices out of the federation, and show these transcripts to the operator of the authority",
        "the server showed two views"
    ))
}

fn print_json(path: &Path, one: &Read, common: usize, found: &[Conflict]) -> Result<()> {
    let (rosters, setups, sums) = one.counts();
    let conflicts: Vec<_> =
        found.iter().map(|c| json!({ "about": c.about, "one": c.one, "other": c.other })).collect();
    let told = json!({
        "head": one.head.to_string(),
        "lines": one.events.len(),
        "rosters": rosters,
        "setups": setups,
        "sums": sums,
        "answers": answers_beside(path).values().map(|answers| answers.total).sum::<u64>(),
        "common": common,
        "conflicts": conflicts,
    });
    println!("{}", serde_json::to_string_pretty(&told).into_diagnostic()?);
    Ok(())
}

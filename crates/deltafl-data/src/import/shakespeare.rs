//! The roles of Shakespeare's plays, from Project Gutenberg's "Complete Works".
//!
//! The rules are those of LEAF for this text, because they determine the devices:
//!
//! - A play starts at a line with `by William Shakespeare`. Its title is two to seven lines above.
//!   The text before the second such line (the contents) is skipped. A play with fewer than two roles
//!   is ignored.
//! - A line `␣␣NAME. words` adds the words to a role; a line that starts with four spaces continues
//!   it. *The Comedy of Errors* is not indented in this edition: there `NAME. words` starts a role,
//!   any other line continues it, `ACT` starts none and `<` ends one. Names are compared in upper
//!   case.
//! - Reading stops after line 124,197 of the file, after the plays of the 2011 posting.
//! - A role with two lines or fewer is dropped. Its text consists of its lines with a space after
//!   each; runs of two or more spaces become one. A window of 20 characters and the next character
//!   are an example.

use std::collections::HashMap;
use std::path::Path;

use super::error::{FilePosition, ImportError, ImportProblem};
use super::input::Input;
use super::{ImportTarget, Imported};
use crate::FederationWriter;
use deltafl::data::{DeviceExamples, InputKind, Provenance, TargetKind};
use deltafl::task::Targets;

/// The alphabet of the paper: index 0 is the space and everything else.
pub const SYMBOLS: &str = " ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Characters per window.
pub const WINDOW: usize = 20;

/// The longest text that is read: ten times the complete works.
const LONGEST: usize = 64 << 20;

const MARK: &str = "by William Shakespeare";

/// LEAF counts lines from 0 after the first one.
const LAST_LINE: usize = 124_195;

/// Returns the code of a character in [`SYMBOLS`].
///
/// ```
/// use deltafl_data::import::shakespeare::symbol;
/// assert_eq!(['A', 'z', ' ', '!'].map(symbol), [1, 52, 0, 0]);
/// ```
pub fn symbol(character: char) -> u8 {
    match character {
        'A'..='Z' => character as u8 - b'A' + 1,
        'a'..='z' => character as u8 - b'a' + 27,
        _ => 0,
    }
}

/// Imports the text.
pub fn import(path: &Path, target: &ImportTarget) -> Result<Imported, ImportError> {
    let bytes = Input::read_all(path, LONGEST)?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        ImportError::at(path, FilePosition::Byte(valid as u64), ImportProblem::Utf8)
    })?;
    let plays =
        plays(&text).map_err(|(line, problem)| ImportError::at(path, FilePosition::Line(line), problem))?;
    let mut source = Provenance::new("shakespeare");
    source.file(path);
    source.option("window", WINDOW);
    let devices = devices(&plays, &mut source);
    if devices.is_empty() {
        let problem = ImportProblem::Nothing(
            "no plays as the 1994 World Library edition prints them (newer postings have another layout)",
        );
        return Err(ImportError::file(path, problem));
    }
    write(&devices, target, source)
}

fn write(
    devices: &[(String, Vec<u8>)],
    target: &ImportTarget,
    mut source: Provenance,
) -> Result<Imported, ImportError> {
    let counts: Vec<u64> = devices.iter().map(|(_, text)| (text.len() - WINDOW) as u64).collect();
    let roster = target.roster(&counts, &mut source)?;
    let kind = InputKind::Windows { len: WINDOW, alphabet: SYMBOLS.len() };
    let classes = target.classes(SYMBOLS.len() as u32 - 1)?.max(SYMBOLS.len());
    let heading = target.heading("shakespeare", kind, TargetKind::Classes(classes));
    let mut writer = FederationWriter::create(&target.out, heading)?;
    target.record(&mut writer, source);
    writer.symbols(SYMBOLS);
    for (device, split) in roster {
        let (id, text) = &devices[device];
        writer.push(id, split, DeviceExamples::Text(text), Targets::IN_TEXT)?;
    }
    Ok(Imported { manifest: writer.finish()?, out: target.out.clone() })
}

/// A play: its title, and its roles with their lines, in the order of their first words.
#[derive(Debug, Default)]
struct Play<'t> {
    title: &'t str,
    roles: Vec<(String, Vec<&'t str>)>,
    index: HashMap<String, usize>,
}

impl<'t> Play<'t> {
    /// Returns the role of this name.
    fn role(&mut self, name: &str) -> usize {
        let name = name.to_uppercase();
        let roles = &mut self.roles;
        *self.index.entry(name).or_insert_with_key(|name| {
            roles.push((name.clone(), Vec::new()));
            roles.len() - 1
        })
    }
}

/// Returns the plays with more than one role; or the line, from 1, of a play without a title.
fn plays(text: &str) -> Result<Vec<Play<'_>>, (u64, ImportProblem)> {
    let lines: Vec<&str> = text.lines().skip(1).collect();
    let marks: Vec<usize> = (0..lines.len()).filter(|&i| lines[i].contains(MARK)).take(2).collect();
    let start = marks.get(1).map_or(0, |second| second.saturating_sub(5));
    let mut plays: Vec<Play<'_>> = Vec::new();
    let mut speaker = None;
    for (i, &line) in lines.iter().enumerate().take(LAST_LINE + 1).skip(start) {
        if line.contains(MARK) {
            let title = title_above(&lines[start..i]).ok_or((
                i as u64 + 2,
                ImportProblem::Missing { what: "the title above", name: MARK.to_owned() },
            ))?;
            plays.push(Play { title, ..Play::default() });
            speaker = None;
        } else if let Some(play) = plays.last_mut() {
            speaker = speak(play, speaker, line);
        }
    }
    plays.retain(|play| play.roles.len() > 1);
    Ok(plays)
}

/// Returns the nearest line above, from the second to the seventh, that is not blank.
fn title_above<'t>(above: &[&'t str]) -> Option<&'t str> {
    above.iter().rev().skip(1).take(6).map(|line| line.trim()).find(|line| !line.is_empty())
}

/// Adds the line to its role, and returns the current role.
fn speak<'t>(play: &mut Play<'t>, speaker: Option<usize>, line: &'t str) -> Option<usize> {
    let is_unindented = play.title == "THE COMEDY OF ERRORS";
    let start = if is_unindented { Some(line) } else { line.strip_prefix("  ") };
    if let Some((name, words)) = start.and_then(name_and_words) {
        if is_unindented && name.to_uppercase().starts_with("ACT ") {
            return None;
        }
        let role = play.role(name);
        play.roles[role].1.push(words);
        return Some(role);
    }
    let role = speaker?;
    let continued = if is_unindented { Some(line) } else { line.strip_prefix("    ") };
    match continued {
        Some(words) if is_unindented && words.starts_with('<') => None,
        Some(words) => {
            play.roles[role].1.push(words);
            Some(role)
        }
        None => Some(role),
    }
}

/// Parses `NAME. words`; a name consists of letters and spaces and starts with a letter.
fn name_and_words(line: &str) -> Option<(&str, &str)> {
    let (name, words) = line.split_once('.')?;
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.bytes().all(|b| b.is_ascii_alphabetic() || b == b' ');
    Some((name, words.strip_prefix(' ')?)).filter(|_| is_name)
}

/// Returns identity and text of the roles with at least one window, and records the dropped ones.
fn devices(plays: &[Play<'_>], source: &mut Provenance) -> Vec<(String, Vec<u8>)> {
    let mut texts: Vec<(String, String)> = Vec::new();
    let mut index = HashMap::new();
    let mut quiet = 0;
    for play in plays {
        for (role, lines) in &play.roles {
            if lines.len() <= 2 {
                quiet += 1;
                continue;
            }
            let id = device_id(play.title, role);
            let device = *index.entry(id.clone()).or_insert_with(|| {
                texts.push((id, String::new()));
                texts.len() - 1
            });
            for line in lines {
                texts[device].1.push_str(line);
                texts[device].1.push(' ');
            }
        }
    }
    let roles = texts.len();
    let mut devices: Vec<_> = texts.into_iter().map(|(id, text)| (id, symbols(&text))).collect();
    devices.retain(|(_, text)| text.len() > WINDOW);
    source.dropped("roles with two lines or fewer", quiet);
    source.dropped("roles shorter than one window", (roles - devices.len()) as u64);
    devices
}

/// Returns the symbols of a text, with runs of spaces replaced by one.
fn symbols(text: &str) -> Vec<u8> {
    let mut symbols = Vec::with_capacity(text.len());
    let mut before = '\0';
    for character in text.chars() {
        if !(character == ' ' && before == ' ') {
            symbols.push(symbol(character));
        }
        before = character;
    }
    symbols
}

/// Returns title and name, with one `_` for each run of other characters than letters, digits and
/// `_`.
fn device_id(title: &str, role: &str) -> String {
    let joined = format!("{title}_{role}").replace(' ', "_");
    let mut id = String::with_capacity(joined.len());
    let mut in_run = false;
    for character in joined.chars() {
        let is_word = character.is_alphanumeric() || character == '_';
        if is_word {
            id.push(character);
        } else if !in_run {
            id.push('_');
        }
        in_run = !is_word;
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "header\r\n\
        by William Shakespeare\n\n\n\n\
        1609\n\n\
        THE FIRST PLAY\n\n\
        by William Shakespeare\n\n\
        \x20 Anne. Who is there,   at such an hour?\n\
        \x20   And why? Answer me.\n\
        \x20                                        [Enter BOB]\n\
        \x20 BOB. It is I.\n\
        Stage direction\n\
        \x20 ANNE. You again!\n\
        \x20 Bob. None other,\n\
        \x20   as ever.\n\n\n\n\
        THE COMEDY OF ERRORS\n\n\
        by William Shakespeare\n\n\
        ACT I. Scene 1\n\
        not spoken\n\
        DUKE. One\n\
        two\n\
        <end>\n\
        lost\n\
        EGEON. Three\n";

    #[test]
    fn roles_speak_by_leafs_rules() {
        let plays = plays(TEXT).unwrap();
        let titles: Vec<&str> = plays.iter().map(|play| play.title).collect();
        assert_eq!(titles, ["THE FIRST PLAY", "THE COMEDY OF ERRORS"]);
        let anne = "                                      [Enter BOB]".trim_start();
        assert_eq!(plays[0].roles[0].0, "ANNE");
        assert_eq!(
            plays[0].roles[0].1.iter().map(|l| l.trim()).collect::<Vec<_>>(),
            ["Who is there,   at such an hour?", "And why? Answer me.", anne, "You again!"]
        );
        assert_eq!(plays[0].roles[1].1, ["It is I.", "None other,", "as ever."]);
        assert_eq!(plays[1].roles[0], ("DUKE".to_owned(), vec!["One", "two"]));
        assert_eq!(plays[1].roles[1], ("EGEON".to_owned(), vec!["Three"]));
    }

    #[test]
    fn a_device_is_a_role_with_its_text() {
        let mut source = Provenance::default();
        let devices = devices(&plays(TEXT).unwrap(), &mut source);
        let ids: Vec<&str> = devices.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(ids, ["THE_FIRST_PLAY_ANNE", "THE_FIRST_PLAY_BOB"]);
        let text: String =
            devices[1].1.iter().map(|&code| SYMBOLS.as_bytes()[usize::from(code)] as char).collect();
        assert_eq!(text, "It is I  None other  as ever  ");
        assert_eq!(source.dropped.len(), 1);
        assert_eq!(source.dropped[0].count, 2);
    }

    #[test]
    fn identities_hold_letters_digits_and_underscores() {
        assert_eq!(device_id("LOVE'S LABOUR'S LOST", "KING (aside)"), "LOVE_S_LABOUR_S_LOST_KING__aside_");
    }
}

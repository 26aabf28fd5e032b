//! Messages of the command, with its options written as keyword arguments.

/// The options of the command that take a value.
const WITH_VALUE: &[&str] = &["out", "compute", "name", "set", "while"];

/// Returns a message with keyword arguments in place of options: `resume=True` for `--resume`.
pub(crate) fn with_keywords(message: &str) -> String {
    let mut written = String::with_capacity(message.len());
    let mut words = message.split_inclusive(|letter: char| letter.is_whitespace()).peekable();
    while let Some(word) = words.next() {
        let body = word.trim_end_matches(|letter: char| letter.is_whitespace() || ",.;:`)".contains(letter));
        let opening = body.len() - body.trim_start_matches(['`', '(']).len();
        let Some(option) = body[opening..].strip_prefix("--").filter(|option| !option.is_empty()) else {
            written.push_str(word);
            continue;
        };
        written.push_str(&word[..opening]);
        let rest = &word[body.len()..];
        // A value follows in the next word, unless the option ends a clause.
        let takes_value = WITH_VALUE.contains(&option) && rest.trim().is_empty();
        let value = if takes_value { words.next() } else { None };
        match value {
            None => {
                let name = option.replace('-', "_");
                let flag = if WITH_VALUE.contains(&option) { "=" } else { "=True" };
                written.push_str(&format!("{name}{flag}{rest}"));
            }
            Some(value) => {
                let text = value.trim_end_matches(|c: char| c.is_whitespace() || ",;".contains(c));
                let end = &value[text.len()..];
                written.push_str(&match (option, text.split_once('=')) {
                    ("set", Some((key, value))) => keyword(key, value),
                    _ => keyword(option, text),
                });
                written.push_str(end);
            }
        }
    }
    written
}

fn keyword(key: &str, value: &str) -> String {
    let ends = value.trim_end_matches([':', '.']);
    let quoted = match ends.parse::<f64>().is_ok() || ends.starts_with(['[', '{', '"']) {
        true => ends.to_owned(),
        false if ends == "true" || ends == "false" => ends[..1].to_uppercase() + &ends[1..],
        false => format!("{ends:?}"),
    };
    let end = &value[ends.len()..];
    let is_name = key.chars().all(|letter| letter.is_alphanumeric() || letter == '_') && key != "while";
    if is_name { format!("{key}={quoted}{end}") } else { format!("**{{{key:?}: {quoted}}}{end}") }
}

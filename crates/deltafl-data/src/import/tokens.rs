//! The words of a tweet: runs of letters, digits, `_` and `'`, and each of `. , ! ? ;` by itself.

/// Returns the tokens of a text, in order: those of the regular expression `[\w']+|[.,!?;]`.
///
/// ```
/// use deltafl_data::import::tokens;
/// assert_eq!(tokens("I don't know... @you!").collect::<Vec<_>>(), ["I", "don't", "know", ".", ".", ".", "you", "!"]);
/// ```
pub fn tokens(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let start = rest.find(|c| is_word(c) || is_mark(c))?;
        let from = &rest[start..];
        let len = match from.find(|c| !is_word(c)) {
            Some(0) => 1, // a mark, which is one byte
            Some(len) => len,
            None => from.len(),
        };
        rest = &from[len..];
        Some(&from[..len])
    })
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '\''
}

fn is_mark(c: char) -> bool {
    matches!(c, '.' | ',' | '!' | '?' | ';')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_stand_alone_and_everything_else_separates() {
        let found: Vec<&str> = tokens("a_1--b;;c é http://x.y/z  :-) 'q'").collect();
        assert_eq!(found, ["a_1", "b", ";", ";", "c", "é", "http", "x", ".", "y", "z", "'q'"]);
        assert_eq!(tokens(":-) #").count(), 0);
    }
}

//! The values of a table: numbers, words, dates and missing values.

use std::borrow::Cow;
use std::fmt;

use super::error::ImportProblem;
use super::number::json_f32;

/// A value of a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell<'a> {
    /// No value.
    Missing,
    /// A text, which may be a number or a date.
    Text(Cow<'a, str>),
    /// A number.
    Number(Number),
    /// A truth value: a word, or 0 or 1 in a column of numbers.
    Truth(bool),
    /// A date, in days since 1970-01-01.
    Days(f64),
    /// A value of a type that is not a feature, with the name of the type.
    Other(&'static str),
}

/// A number in a type that contains it exactly. Devices, classes and categories are compared by its
/// text, and features are its nearest `f32`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Single(f32),
    Double(f64),
    Whole(i128),
}

impl Number {
    pub(crate) fn as_f32(self) -> f32 {
        match self {
            Self::Single(number) => number,
            Self::Double(number) => number as f32,
            Self::Whole(number) => number as f32,
        }
    }

    pub(crate) fn as_f64(self) -> f64 {
        match self {
            Self::Single(number) => number.into(),
            Self::Double(number) => number,
            Self::Whole(number) => number as f64,
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single(number) => number.fmt(f),
            Self::Double(number) => number.fmt(f),
            Self::Whole(number) => number.fmt(f),
        }
    }
}

impl<'a> Cell<'a> {
    /// Returns the text of the value, or `None` if it is missing.
    pub(crate) fn into_text(self) -> Result<Option<Cow<'a, str>>, ImportProblem> {
        Ok(Some(match self {
            Self::Missing => return Ok(None),
            Self::Text(text) => text,
            Self::Number(number) => number.to_string().into(),
            Self::Truth(truth) => truth_word(truth).into(),
            Self::Days(days) => days.to_string().into(),
            Self::Other(found) => {
                return Err(ImportProblem::Unsupported {
                    what: "the column".to_owned(),
                    found: found.to_owned(),
                    supported: "strings, numbers and dates",
                });
            }
        }))
    }
}

/// Returns the word of a truth value.
pub(crate) fn truth_word(truth: bool) -> &'static str {
    if truth { "true" } else { "false" }
}

/// Whether a text means a missing value: the texts of pandas.
pub(crate) fn is_missing(text: &str) -> bool {
    // Most values are decided by their first byte.
    match text.as_bytes() {
        [] => true,
        [b'N', ..] => matches!(text, "N/A" | "NA" | "NULL" | "NaN" | "None" | "NAN"),
        [b'n', ..] => matches!(text, "n/a" | "nan" | "null"),
        [b'#', ..] => matches!(text, "#N/A" | "#NA"),
        [b'<', ..] => text == "<NA>",
        [b'-', ..] => matches!(text, "-1.#IND" | "-NaN" | "-nan"),
        [b'1', ..] => text == "1.#IND",
        _ => false,
    }
}

/// Returns a text without white space around it. Most texts have none.
pub(crate) fn trimmed(text: &str) -> &str {
    let is_visible = |byte: &u8| (b'!'..=b'~').contains(byte);
    match text.as_bytes() {
        [one] if is_visible(one) => text,
        [first, .., last] if is_visible(first) && is_visible(last) => text,
        _ => text.trim(),
    }
}

/// Whether a text means a missing label. `None` may be the name of a class.
pub(crate) fn is_missing_label(text: &str) -> bool {
    text != "None" && is_missing(text)
}

/// The character between the whole part and the fraction of a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decimal {
    /// A point.
    #[default]
    Point,
    /// A comma, if the number contains one. Points before it separate thousands.
    Comma,
}

/// Returns the number that a text contains.
pub(crate) fn number(text: &str, decimal: Decimal) -> Option<f32> {
    if let Some((number, len)) = json_f32(text.as_bytes())
        && len == text.len()
    {
        return Some(number);
    }
    match text.parse::<f32>() {
        Ok(number) => Some(number),
        Err(_) if decimal == Decimal::Comma => comma_number(text),
        Err(_) => None,
    }
}

/// Whether a number has a decimal comma.
pub(crate) fn has_comma(text: &str) -> bool {
    text.contains(',')
}

/// Parses `-1.234,5`: one comma, digits around it, and points only between groups of three digits.
fn comma_number(text: &str) -> Option<f32> {
    let (whole, fraction) = text.split_once(',')?;
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let unsigned = whole.strip_prefix(['-', '+']).unwrap_or(whole);
    let mut groups = unsigned.split('.');
    let first = groups.next()?;
    let fits = digits(first) && groups.clone().all(|group| group.len() == 3 && digits(group));
    let grouped = groups.next().is_none() || first.len() <= 3;
    if !(digits(fraction) && fits && grouped) {
        return None;
    }
    format!("{}.{fraction}", whole.replace('.', "")).parse().ok()
}

/// Returns the days since 1970-01-01 of a date, with or without a time: `2024-03-31`,
/// `2024-03-31T12:30:00Z`, `2024/03/31`, `31.03.2024`, `31/03/2024` or `03/31/2024`.
///
/// In the form with two slashes and the year last, the month is first unless it is above 12.
pub(crate) fn days(text: &str) -> Option<f64> {
    let bytes = text.as_bytes();
    if !(8..=40).contains(&bytes.len()) || !bytes[0].is_ascii_digit() || !text.is_ascii() {
        return None;
    }
    let end = text.find(['T', ' ']).unwrap_or(text.len());
    let (date, time) = (&text[..end], text[end..].get(1..).unwrap_or(""));
    let separator = date.bytes().find(|byte| !byte.is_ascii_digit())?;
    let mut parts = date.split(char::from(separator));
    let (a, b, c) = (parts.next()?, parts.next()?, parts.next()?);
    let number = |part: &str, most: usize| {
        let valid = (1..=most).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
        valid.then(|| part.parse::<i64>().ok()).flatten()
    };
    if parts.next().is_some() {
        return None;
    }
    let (year, month, day) = match (separator, a.len(), c.len()) {
        (b'-' | b'/' | b'.', 4, 1..=2) => (number(a, 4)?, number(b, 2)?, number(c, 2)?),
        (b'.' | b'-', 1..=2, 4) => (number(c, 4)?, number(b, 2)?, number(a, 2)?),
        (b'/', 1..=2, 4) => {
            let (first, second) = (number(a, 2)?, number(b, 2)?);
            let (month, day) = if first > 12 { (second, first) } else { (first, second) };
            (number(c, 4)?, month, day)
        }
        _ => return None,
    };
    if !(1..=12).contains(&month) || !(1..=days_of_month(year, month)).contains(&day) {
        return None;
    }
    let fraction = if time.is_empty() { 0.0 } else { day_fraction(time)? };
    Some(days_from_civil(year, month, day) as f64 + fraction)
}

/// Whether a date is written as `31/03/2024`, although dates with slashes have the month first. Other
/// dates of the same column, such as `05/03/2024`, are then ambiguous.
pub(crate) fn is_day_first(text: &str) -> bool {
    let first = text.split_once('/').and_then(|(first, _)| first.parse::<u32>().ok());
    first.is_some_and(|first| (13..=31).contains(&first))
}

fn days_of_month(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Parses `HH:MM[:SS[.f]]` with an optional `Z` or `±HH[:MM]`, as a fraction of a day in UTC.
fn day_fraction(time: &str) -> Option<f64> {
    let zone_at = time.find(['Z', '+', '-']).unwrap_or(time.len());
    let (clock, zone) = (time[..zone_at].trim_end(), &time[zone_at..]);
    let mut parts = clock.split(':');
    let hours: u32 = parts.next()?.parse().ok().filter(|&hours| hours < 25)?;
    let minutes: u32 = parts.next()?.parse().ok().filter(|&minutes| minutes < 60)?;
    let seconds: f64 = match parts.next() {
        Some(seconds) if seconds.as_bytes().first().is_some_and(u8::is_ascii_digit) => {
            seconds.parse().ok()?
        }
        Some(_) => return None,
        None => 0.0,
    };
    if parts.next().is_some() || !(0.0..61.0).contains(&seconds) {
        return None;
    }
    let offset = match zone {
        "" | "Z" => 0.0,
        zone => {
            let digits: String = zone[1..].chars().filter(|c| *c != ':').collect();
            let padded = if digits.len() == 2 { format!("{digits}00") } else { digits };
            let both: u32 = Some(padded).filter(|text| text.len() == 4)?.parse().ok()?;
            let minutes = f64::from(both / 100 * 60 + both % 100);
            if zone.starts_with('-') { -minutes } else { minutes }
        }
    };
    Some((f64::from(hours) * 3600.0 + f64::from(minutes) * 60.0 + seconds - offset * 60.0) / 86_400.0)
}

/// Returns the days from 1970-01-01 to a date of the Gregorian calendar.
pub(crate) fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_commas_are_read_where_they_are_allowed() {
        for (text, expected) in [
            ("1,5", Some(1.5)),
            ("-1.234,5", Some(-1234.5)),
            ("3", Some(3.0)),
            ("0.25", Some(0.25)),
            ("+2", Some(2.0)),
        ] {
            assert_eq!(number(text, Decimal::Comma), expected, "{text}");
        }
        for text in ["1,5,2", "12.34,5", "1,", ",5", "a,b", "1.2345,6", "1234.567,8"] {
            assert_eq!(number(text, Decimal::Comma), None, "{text}");
        }
        assert_eq!(number("1,5", Decimal::Point), None);
    }

    #[test]
    fn the_missing_values_of_pandas_are_missing_and_nothing_else_is() {
        let missing = [
            "", "#N/A", "#NA", "-1.#IND", "1.#IND", "-NaN", "-nan", "<NA>", "N/A", "NA", "NULL", "NaN",
            "None", "n/a", "nan", "null", "NAN",
        ];
        assert!(missing.into_iter().all(is_missing));
        for text in ["N", "n", "-", "1", "1.5", "-1", "nil", "Nothing", "#", "<", "0", "?", "none"] {
            assert!(!is_missing(text), "{text}");
        }
    }

    #[test]
    fn white_space_around_a_text_is_removed() {
        for text in ["", " ", "a", " a", "a ", "\u{a0}é\u{a0}", "a b", "\ta\n", "é", "  a b  "] {
            assert_eq!(trimmed(text), text.trim(), "{text:?}");
        }
    }

    #[test]
    fn dates_of_common_forms_are_days() {
        let cases = [
            ("1970-01-01", 0.0),
            ("1970-01-02T12:00:00Z", 1.5),
            ("1970-01-02 12:00", 1.5),
            ("1970-01-02T12:00:00+12:00", 1.0),
            ("2000-03-01", 11017.0),
            ("2024/02/29", 19782.0),
            ("29.02.2024", 19782.0),
            ("29/02/2024", 19782.0),
            ("02/29/2024", 19782.0),
        ];
        for (text, expected) in cases {
            assert_eq!(days(text), Some(expected), "{text}");
        }
        let no_dates = [
            "2023-02-29",
            "2024-13-01",
            "12345678",
            "1-2-3",
            "20240229",
            "a good film",
            "3.14159265",
            "10.0.0.127",
            "2024-02-29x",
            "2024-02-29 25:00:00",
            "é2024-02-29",
        ];
        for text in no_dates {
            assert_eq!(days(text), None, "{text}");
        }
    }
}

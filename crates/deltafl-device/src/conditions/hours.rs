//! Hours of the day.

use std::str::FromStr;
use std::sync::Arc;

use serde::Deserialize;

/// Minutes of a day.
const DAY: u16 = 24 * 60;

/// The hours at which a device participates, by its local clock.
#[derive(Clone)]
pub struct Hours {
    /// The windows. The device participates during any of them.
    pub windows: Vec<TimeWindow>,
    /// Returns the minute of the day in the owner's time zone.
    pub now: Arc<dyn Fn() -> u16 + Send + Sync>,
}

impl Hours {
    pub(super) fn are_now(&self) -> bool {
        let now = (self.now)();
        self.windows.iter().any(|window| window.contains(now))
    }
}

/// From a minute of the day up to another, which may be one of the next day: `22:00-06:30`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct TimeWindow {
    from: u16,
    until: u16,
}

/// The error for text that is not a time window.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not two different times of a day, such as 22:00-06:30")]
pub struct InvalidWindow(String);

impl TimeWindow {
    /// Returns `true` if the window contains this minute of the day. The end is exclusive.
    pub fn contains(&self, minute: u16) -> bool {
        if self.from < self.until {
            (self.from..self.until).contains(&minute)
        } else {
            minute >= self.from || minute < self.until
        }
    }
}

impl FromStr for TimeWindow {
    type Err = InvalidWindow;

    fn from_str(text: &str) -> Result<Self, InvalidWindow> {
        let invalid = || InvalidWindow(text.to_owned());
        let (from, until) = text.split_once('-').ok_or_else(invalid)?;
        let (from, until) = (minute(from).ok_or_else(invalid)?, minute(until).ok_or_else(invalid)?);
        if from == until || from == DAY { Err(invalid()) } else { Ok(Self { from, until }) }
    }
}

impl TryFrom<String> for TimeWindow {
    type Error = InvalidWindow;

    fn try_from(text: String) -> Result<Self, InvalidWindow> {
        text.parse()
    }
}

/// The minute of the day; `24:00` is its end.
fn minute(text: &str) -> Option<u16> {
    let (hours, minutes) = text.trim().split_once(':')?;
    let digits = |text: &str| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(hours) || !digits(minutes) {
        return None;
    }
    let (hours, minutes): (u16, u16) = (hours.parse().ok()?, minutes.parse().ok()?);
    let minute = 60 * hours + minutes;
    (minutes < 60 && minute <= DAY).then_some(minute)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_lie_within_a_day_or_over_midnight() {
        let at =
            |window: &str, time: &str| window.parse::<TimeWindow>().unwrap().contains(minute(time).unwrap());
        assert!(at("09:00-17:30", "09:00") && at("09:00-17:30", "17:29"));
        assert!(!at("09:00-17:30", "17:30") && !at("09:00-17:30", "08:59"));
        assert!(at("22:00-06:30", "23:59") && at("22:00-06:30", "00:00") && at("22:00-06:30", "06:29"));
        assert!(!at("22:00-06:30", "06:30") && !at("22:00-06:30", "12:00"));
        assert!(at("18:00-24:00", "23:59") && !at("18:00-24:00", "00:00"));
    }

    #[test]
    fn text_that_is_no_window_is_refused() {
        for text in [
            "",
            "9-17",
            "09:00",
            "09:00-09:00",
            "25:00-26:00",
            "09:60-10:00",
            "24:00-06:00",
            "9:00-10:00",
            "-1:00-02:00",
        ] {
            assert!(text.parse::<TimeWindow>().is_err(), "{text}");
        }
    }
}

//! When an event happened, in the forms the reference reads and writes.

use std::fmt;

use serde_json::Value;

use crate::lax::{Checked, FromInput, Input, is_int};

/// Beyond this many seconds a number means milliseconds.
const SECONDS_MAX: i64 = 20_000_000_000;

/// A date and a time, with the offset from UTC they were given in, if any.
///
/// ```
/// use bastide_model::events::EventTime;
///
/// let time = EventTime::from_unix_micros(1_700_000_000_500_000);
/// assert_eq!(time.to_string(), "2023-11-14T22:13:20.500000Z");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventTime {
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
    micros: i64,
    offset_minutes: Option<i64>,
}

impl EventTime {
    /// A moment in UTC; one outside the years 1 to 9999 is moved to the nearest of them.
    #[must_use]
    pub fn from_unix_micros(micros: i64) -> Self {
        const FIRST: i64 = -62_135_596_800_000_000;
        const LAST: i64 = 253_402_300_799_999_999;
        let micros = micros.clamp(FIRST, LAST);
        let (seconds, micros) = (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000));
        let (days, clock) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let (year, month, day) = civil_date(days);
        Self {
            year,
            month,
            day,
            hour: clock / 3600,
            minute: clock / 60 % 60,
            second: clock % 60,
            micros,
            offset_minutes: Some(0),
        }
    }

    fn of_seconds(seconds: i64, micros: i64) -> Option<Self> {
        let total = seconds.checked_mul(1_000_000)?.checked_add(micros)?;
        let time = Self::from_unix_micros(total);
        // Clamped means that no such moment can be written.
        (time.unix_micros() == total).then_some(time)
    }

    /// The moment as microseconds since 1970, read as if it were in UTC.
    #[must_use]
    pub fn unix_micros(&self) -> i64 {
        let days = days_from_civil(self.year, self.month, self.day);
        let clock = self.hour * 3600 + self.minute * 60 + self.second;
        (days * 86_400 + clock) * 1_000_000 + self.micros
    }

    fn of_whole(number: i64) -> Option<Self> {
        if number.abs() <= SECONDS_MAX {
            return Self::of_seconds(number, 0);
        }
        Self::of_seconds(number.div_euclid(1000), number.rem_euclid(1000) * 1000)
    }

    fn of_fraction(number: f64) -> Option<Self> {
        #[expect(clippy::cast_precision_loss, reason = "the limit is far below 2^53")]
        let limit = SECONDS_MAX as f64;
        let seconds = if number.abs() > limit { number / 1000.0 } else { number };
        if seconds.is_nan() || seconds.abs() > 1e12 {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "bounded by the check above")]
        let (whole, micros) =
            (seconds.floor() as i64, ((seconds - seconds.floor()) * 1e6).round() as i64);
        Self::of_seconds(whole, micros)
    }

    /// A number written as text: seconds, or milliseconds where it is too large.
    fn of_number_text(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        let has_digits = !(whole.is_empty() && fraction.is_empty());
        if !has_digits || !all_digits(whole) || !all_digits(fraction) {
            return None;
        }
        match digits.contains('.') {
            true => Self::of_fraction(text.trim_end_matches('.').parse().ok()?),
            false => Self::of_whole(text.parse().ok()?),
        }
    }

    fn of_text(text: &str) -> Option<Self> {
        let (date, rest) = text.split_at_checked(10)?;
        let (year, month, day) = date_parts(date)?;
        let midnight = Self {
            year,
            month,
            day,
            hour: 0,
            minute: 0,
            second: 0,
            micros: 0,
            offset_minutes: None,
        };
        if rest.is_empty() {
            return Some(midnight);
        }
        let clock = rest.strip_prefix(['T', 't', ' ', '_'])?;
        let (hour, clock) = two_digits(clock, 23)?;
        let (minute, clock) = two_digits(clock.strip_prefix(':')?, 59)?;
        let (second, clock) = match clock.strip_prefix(':') {
            Some(clock) => two_digits(clock, 59)?,
            None => (0, clock),
        };
        let has_seconds = clock.len() + 9 == rest.len();
        let (micros, zone) = match clock.strip_prefix(['.', ',']) {
            Some(clock) if has_seconds => fraction(clock)?,
            _ => (0, clock),
        };
        let offset_minutes = offset(zone)?;
        Some(Self { hour, minute, second, micros, offset_minutes, ..midnight })
    }
}

fn date_parts(date: &str) -> Option<(i64, i64, i64)> {
    let mut parts = date.split('-');
    let [year, month, day] = [parts.next()?, parts.next()?, parts.next()?];
    let number = |text: &str, width: usize| -> Option<i64> {
        let plain = text.len() == width && text.bytes().all(|byte| byte.is_ascii_digit());
        if plain { text.parse().ok() } else { None }
    };
    let (year, month, day) = (number(year, 4)?, number(month, 2)?, number(day, 2)?);
    let exists = year >= 1 && civil_date(days_from_civil(year, month, day)) == (year, month, day);
    (parts.next().is_none() && exists).then_some((year, month, day))
}

fn two_digits(text: &str, max: i64) -> Option<(i64, &str)> {
    let (digits, rest) = text.split_at_checked(2)?;
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.parse().ok().filter(|number| plain && *number <= max)?;
    Some((number, rest))
}

/// Six digits count; more are passed over.
fn fraction(text: &str) -> Option<(i64, &str)> {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    let six = format!("{:0<6}", &digits[..digits.len().min(6)]);
    if digits.is_empty() { None } else { Some((six.parse().ok()?, rest)) }
}

fn offset(text: &str) -> Option<Option<i64>> {
    if matches!(text, "" | "Z" | "z") {
        return Some((!text.is_empty()).then_some(0));
    }
    let sign = if text.starts_with('+') { 1 } else { -1 };
    let (hours, rest) = two_digits(text.strip_prefix(['+', '-', '−'])?, 23)?;
    let (minutes, rest) = two_digits(rest.strip_prefix(':').unwrap_or(rest), 59)?;
    rest.is_empty().then_some(Some(sign * (hours * 60 + minutes)))
}

/// The date `days` after 1970-01-01, by counting in eras of 400 years from a year that starts in
/// March, so that leap days come last.
fn civil_date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let leap_corrected =
        day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096;
    let year_of_era = leap_corrected / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

impl fmt::Display for EventTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { year, month, day, hour, minute, second, micros, .. } = self;
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")?;
        if *micros != 0 {
            write!(f, ".{micros:06}")?;
        }
        match self.offset_minutes {
            None => Ok(()),
            Some(0) => f.write_str("Z"),
            Some(offset) => {
                let sign = if offset < 0 { '-' } else { '+' };
                let offset = offset.abs();
                write!(f, "{sign}{:02}:{:02}", offset / 60, offset % 60)
            }
        }
    }
}

impl FromInput for EventTime {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let time = match input.value() {
            Value::String(text) => Self::of_text(text).or_else(|| Self::of_number_text(text)),
            Value::Number(number) if is_int(number) => number.as_i64().and_then(Self::of_whole),
            Value::Number(number) => number.as_f64().and_then(Self::of_fraction),
            _ => {
                return Err(input.field_error("datetime_type", "Input should be a valid datetime"));
            }
        };
        time.ok_or_else(|| {
            input.field_error("datetime_parsing", "Input should be a valid datetime or date")
        })
    }
}

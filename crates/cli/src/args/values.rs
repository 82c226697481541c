//! Values that are more than text.

use std::time::Duration;

use bastide::SessionName;

use crate::config;

pub(crate) fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

/// A name for a session.
pub(crate) fn parse_name(text: &str) -> Result<SessionName, String> {
    text.parse().map_err(|error: bastide::Error| match error.hint() {
        Some(hint) => format!("{}: {hint}", error.message()),
        None => error.message().to_owned(),
    })
}

/// A variable to set: with a value, or with the caller's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PassedVariable {
    key: String,
    value: Option<String>,
}

impl PassedVariable {
    /// The variable and its value. One that the caller does not have is not set, as in `docker run -e`.
    pub(crate) fn resolve(self) -> Option<(String, String)> {
        let value = self.value.or_else(|| config::variable(&self.key))?;
        Some((self.key, value))
    }
}

pub(crate) fn parse_variable(text: &str) -> Result<PassedVariable, String> {
    let (key, value) = match text.split_once('=') {
        Some((key, value)) => (key, Some(value.to_owned())),
        None => (text, None),
    };
    if key.is_empty() || text.contains('\0') {
        return Err("expected KEY=VALUE, or KEY for a variable of yours".to_owned());
    }
    Ok(PassedVariable { key: key.to_owned(), value })
}

pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("", 1.0)];
    let parsed = units.into_iter().find_map(|(unit, seconds)| {
        let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
        Duration::try_from_secs_f64(number * seconds).ok()
    });
    parsed.ok_or_else(|| "expected a time such as 500ms, 30s or 5m".to_owned())
}

/// How many points of a journal are kept, or for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JournalKeep {
    Most(usize),
    Age(Duration),
}

pub(crate) fn parse_keep(text: &str) -> Result<JournalKeep, String> {
    let wrong = || "expected a number of points such as 200, or a time such as 24h".to_owned();
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        let most = text.parse().ok().filter(|most| (1..=100_000).contains(most));
        return most.map(JournalKeep::Most).ok_or_else(wrong);
    }
    let age = parse_time(text).ok().filter(|age| !age.is_zero());
    age.map(JournalKeep::Age).ok_or_else(wrong)
}

/// A number of bytes, such as `512m` or `1g`.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let units = [("k", 10), ("m", 20), ("g", 30), ("t", 40), ("", 0)];
    let parsed = units.into_iter().find_map(|(unit, shift)| {
        let number: u64 = lower.strip_suffix(unit)?.parse().ok()?;
        number.checked_mul(1_u64 << shift)
    });
    parsed.filter(|bytes| *bytes > 0).ok_or_else(|| "expected a size such as 512m or 1g".to_owned())
}

/// A number of processors, such as `1.5`, in thousandths.
pub(crate) fn parse_cpus(text: &str) -> Result<u64, String> {
    let wrong = || "expected a number of processors such as 2 or 1.5".to_owned();
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.len() + part.len() == 0 || part.len() > 3 || !digits(whole) || !digits(part) {
        return Err(wrong());
    }
    let whole: u64 = format!("0{whole}").parse().map_err(|_| wrong())?;
    let part: u64 = format!("{part:0<3}").parse().map_err(|_| wrong())?;
    let millis = whole.checked_mul(1000).and_then(|whole| whole.checked_add(part));
    millis.filter(|millis| *millis > 0).ok_or_else(wrong)
}

/// The signals by their names, without `SIG`.
const SIGNALS: [(&str, i32); 31] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("STKFLT", 16),
    ("CHLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("URG", 23),
    ("XCPU", 24),
    ("XFSZ", 25),
    ("VTALRM", 26),
    ("PROF", 27),
    ("WINCH", 28),
    ("IO", 29),
    ("PWR", 30),
    ("SYS", 31),
];

/// A signal by its name, with or without `SIG`, or its number.
pub(crate) fn parse_signal(text: &str) -> Result<i32, String> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let named = SIGNALS.iter().find(|(other, _)| *other == name).map(|(_, number)| *number);
    let numbered = text.parse().ok().filter(|number| (1..=64).contains(number));
    named.or(numbered).ok_or_else(|| "expected a signal such as TERM, SIGKILL or 15".to_owned())
}

/// The name of a signal, or its number if it has none.
pub(crate) fn signal_name(number: i32) -> String {
    let named = SIGNALS.iter().find(|(_, other)| *other == number);
    named.map_or_else(|| number.to_string(), |(name, _)| format!("{name} ({number})"))
}

/// A number of bytes, for people.
pub(crate) fn size_text(bytes: u64) -> String {
    let units = [(1_u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => {
            let tenths = u128::from(bytes) * 10 / u128::from(unit);
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        }
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_times() {
        let cases = [
            ("500ms", Some(Duration::from_millis(500))),
            ("1s", Some(Duration::from_secs(1))),
            ("1.5m", Some(Duration::from_secs(90))),
            ("2h", Some(Duration::from_secs(7200))),
            ("7", Some(Duration::from_secs(7))),
            ("-1s", None),
            ("soon", None),
            ("infs", None),
        ];
        for (text, want) in cases {
            assert_eq!(parse_time(text).ok(), want, "{text}");
        }
    }

    #[test]
    fn reads_sizes() {
        let cases = [
            ("1g", Some(1 << 30)),
            ("512M", Some(512 << 20)),
            ("4096", Some(4096)),
            ("0", None),
            ("1.5g", None),
            ("99999999999t", None),
            ("much", None),
        ];
        for (text, want) in cases {
            assert_eq!(parse_bytes(text).ok(), want, "{text}");
        }
    }

    #[test]
    fn reads_numbers_of_processors() {
        let cases = [
            ("2", Some(2000)),
            ("1.5", Some(1500)),
            (".25", Some(250)),
            ("0.001", Some(1)),
            ("0", None),
            ("", None),
            (".", None),
            ("1.5555", None),
            ("-1", None),
            ("99999999999999999999", None),
        ];
        for (text, want) in cases {
            assert_eq!(parse_cpus(text).ok(), want, "{text}");
        }
    }

    #[test]
    fn reads_signals() {
        let cases = [
            ("TERM", Some(15)),
            ("sigkill", Some(9)),
            ("15", Some(15)),
            ("64", Some(64)),
            ("65", None),
            ("0", None),
            ("BANG", None),
        ];
        for (text, want) in cases {
            assert_eq!(parse_signal(text).ok(), want, "{text}");
        }
    }
}

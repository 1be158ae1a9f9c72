//! Signals by number and by the names used in images.

/// A Linux signal number, 1 to 64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal(u8);

impl Signal {
    /// Asks a process to terminate.
    pub const TERM: Self = Self(15);
    /// Kills any process.
    pub const KILL: Self = Self(9);

    /// The signal with this number, if it is valid.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number >= 1 && number <= 64 {
            Some(Self(number))
        } else {
            None
        }
    }

    /// Its number on Linux.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The signal with this name (`SIGTERM`, `TERM`, `RTMIN+3`) or number, in the syntax of an image's
    /// `STOPSIGNAL`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().to_ascii_uppercase();
        if let Ok(number) = text.parse::<u8>() {
            return Self::new(number);
        }
        let name = text.strip_prefix("SIG").unwrap_or(&text);
        if let Some(offset) = name.strip_prefix("RTMIN") {
            let offset = if offset.is_empty() {
                0
            } else {
                offset.strip_prefix('+')?.parse::<u8>().ok()?
            };
            return if offset <= 30 {
                Self::new(34 + offset)
            } else {
                None
            };
        }
        if let Some(offset) = name.strip_prefix("RTMAX") {
            let offset = if offset.is_empty() {
                0
            } else {
                offset.strip_prefix('-')?.parse::<u8>().ok()?
            };
            return if offset <= 30 {
                Self::new(64 - offset)
            } else {
                None
            };
        }
        let alias = match name {
            "IOT" => "ABRT",
            "CLD" => "CHLD",
            "POLL" => "IO",
            other => other,
        };
        let index = SIGNAL_NAMES.iter().position(|known| *known == alias)?;
        Self::new(u8::try_from(index + 1).ok()?)
    }
}

/// Names of the signals 1 to 31, in order (x86 and ARM numbering).
const SIGNAL_NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
    "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
    "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

//! Converts Linux signal numbers to CRI's.

use switchyard_core::spec::Signal;
use switchyard_proto::cri::v1 as cri;

/// The signals 1 to 31, in the order of their Linux numbers.
const BY_NUMBER: [cri::Signal; 31] = {
    use cri::Signal as S;
    [
        S::Sighup,
        S::Sigint,
        S::Sigquit,
        S::Sigill,
        S::Sigtrap,
        S::Sigabrt,
        S::Sigbus,
        S::Sigfpe,
        S::Sigkill,
        S::Sigusr1,
        S::Sigsegv,
        S::Sigusr2,
        S::Sigpipe,
        S::Sigalrm,
        S::Sigterm,
        S::Sigstkflt,
        S::Sigchld,
        S::Sigcont,
        S::Sigstop,
        S::Sigtstp,
        S::Sigttin,
        S::Sigttou,
        S::Sigurg,
        S::Sigxcpu,
        S::Sigxfsz,
        S::Sigvtalrm,
        S::Sigprof,
        S::Sigwinch,
        S::Sigio,
        S::Sigpwr,
        S::Sigsys,
    ]
};

/// The signal in CRI's numbering. The two signals that the C library reserves have no name in CRI.
pub(super) fn stop_signal(signal: Signal) -> cri::Signal {
    let number = signal.number();
    match BY_NUMBER.get(usize::from(number) - 1) {
        Some(name) => *name,
        // The real-time signals are consecutive in both numberings, with an offset of one.
        None if number >= 34 => {
            cri::Signal::try_from(i32::from(number) + 1).unwrap_or(cri::Signal::RuntimeDefault)
        }
        None => cri::Signal::RuntimeDefault,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_is_named_as_linux_names_it() {
        for number in (1..=31).chain(34..=64) {
            let signal = Signal::new(number).expect("it is between 1 and 64");
            let wire = stop_signal(signal)
                .as_str_name()
                .replace("PLUS", "+")
                .replace("MINUS", "-");
            let name = wire.strip_prefix("SIGNAL_").expect("all names begin so");
            assert_eq!(Signal::parse(name), Some(signal), "{number} became {wire}");
        }
    }

    #[test]
    fn unnamed_signals_map_to_default() {
        for number in [32, 33] {
            let signal = Signal::new(number).expect("it is between 1 and 64");
            assert_eq!(stop_signal(signal), cri::Signal::RuntimeDefault);
        }
    }
}

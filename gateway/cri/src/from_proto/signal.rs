//! Converts stop signals: CRI has its own numbering, and is translated by name.

use switchyard_core::Result;
use switchyard_core::spec::Signal;
use switchyard_proto::cri::v1 as cri;

use super::field::known;

/// The signal with this number on the wire; `None` uses the image's.
pub(super) fn stop_signal(number: i32) -> Result<Option<Signal>> {
    let signal: cri::Signal = known("config.stop_signal", number)?;
    // `SIGNAL_SIGRTMINPLUS3` is `RTMIN+3` in Linux notation.
    let name = signal
        .as_str_name()
        .replace("PLUS", "+")
        .replace("MINUS", "-");
    Ok(name.strip_prefix("SIGNAL_").and_then(Signal::parse))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(wire: cri::Signal, linux: u8) {
        assert_eq!(
            stop_signal(wire.into())
                .expect("it is known")
                .map(Signal::number),
            Some(linux),
            "{wire:?}"
        );
    }

    #[test]
    fn wire_signals_map_to_linux_numbers() {
        check(cri::Signal::Sigterm, 15);
        check(cri::Signal::Sigkill, 9);
        check(cri::Signal::Sighup, 1);
        check(cri::Signal::Sigint, 2);
        check(cri::Signal::Sigquit, 3);
        check(cri::Signal::Sigusr1, 10);
        check(cri::Signal::Sigusr2, 12);
        check(cri::Signal::Sigwinch, 28);
        check(cri::Signal::Sigcld, 17);
        check(cri::Signal::Sigchld, 17);
        check(cri::Signal::Sigiot, 6);
        check(cri::Signal::Sigpoll, 29);
        check(cri::Signal::Sigrtmin, 34);
        check(cri::Signal::Sigrtminplus1, 35);
        check(cri::Signal::Sigrtminplus15, 49);
        check(cri::Signal::Sigrtmaxminus14, 50);
        check(cri::Signal::Sigrtmaxminus1, 63);
        check(cri::Signal::Sigrtmax, 64);
    }

    #[test]
    fn every_wire_signal_except_default_maps_to_linux() {
        assert_eq!(stop_signal(0).expect("it is known"), None);
        for number in 1..=65 {
            assert!(
                stop_signal(number).is_ok_and(|signal| signal.is_some()),
                "{number}"
            );
        }
    }

    #[test]
    fn unknown_signal_number_is_rejected() {
        let error = stop_signal(66).expect_err("there is no such number");
        assert_eq!(
            error.report(),
            "config.stop_signal: 66 is not one of its values"
        );
    }
}

//! Umask and signals of whoever starts our programs do not reach the programs that these execute.

use std::fs;
use std::process::Command;

use crate::support::exe;

/// The bits of the signals that are looked at: not SIGPIPE, which Rust ignores in each program of ours, and none of real time, of which
/// libc keeps two to itself.
const LOOKED_AT: u64 = 0x7fff_ffff & !(1 << 12);

/// The umask, the blocked signals and the ignored ones in a `/proc/<pid>/status`.
fn inherited(status: &str) -> (String, u64, u64) {
    let field = |key: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(key));
        value.unwrap().trim().to_owned()
    };
    let mask = |key: &str| u64::from_str_radix(&field(key), 16).unwrap();
    (
        field("Umask:"),
        mask("SigBlk:"),
        mask("SigIgn:") & LOOKED_AT,
    )
}

#[test]
fn program_that_is_detached_has_umask_and_signals_of_a_service_manager() {
    for (umask, ignored, blocked) in [
        ("0022", "", ""),
        ("0077", "CHLD", "TERM"),
        ("0027", "HUP,PIPE", "CHLD,USR1"),
        ("0777", "INT,QUIT,TSTP,TTIN,TTOU,CHLD", "HUP,INT,ALRM"),
        ("0002", "TERM,USR1,USR2,WINCH,SYS", "PIPE"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        // env(1) takes an empty list for all signals.
        let option = |name: &str, signals: &str| {
            (!signals.is_empty()).then(|| format!("--{name}-signal={signals}"))
        };
        let ended = Command::new("sh")
            .args(["-c", "umask $0; exec env \"$@\"", umask])
            .args(option("ignore", ignored))
            .args(option("block", blocked))
            .arg(exe())
            .args(["detach", "--pid-file"])
            .arg(dir.path().join("pid"))
            .arg("--log")
            .arg(&log)
            .args(["--", "cat", "/proc/self/status"])
            .status()
            .unwrap();
        let text = fs::read_to_string(&log).unwrap();
        assert!(ended.success(), "{ended}: {text}");
        assert_eq!(
            inherited(&text),
            ("0022".to_owned(), 0, 0),
            "umask {umask}, ignored {ignored:?}, blocked {blocked:?}"
        );
    }
}

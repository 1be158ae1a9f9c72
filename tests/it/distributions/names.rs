//! A static program finds names of hosts and groups in files and by DNS alone, whichever modules the node lists.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use switchyard_tests::prereq;
use switchyard_tests::scratch::Scratch;

use crate::architecture::repository;

/// Looks up a host that only /etc/hosts has, and a group.
const CLIENT: &str = r#"
#include <grp.h>
#include <netdb.h>
#include <stdio.h>

int main(void)
{
    struct addrinfo *found;
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    int host = getaddrinfo("name.example", NULL, &hints, &found) == 0;
    printf("host %d group %d\n", host, getgrnam("root") != NULL);
    return 0;
}
"#;

/// Runs the program with these files in the place of the node's.
const WITH_FILES: &str = r#"
mount --bind "$1/nsswitch.conf" /etc/nsswitch.conf
mount --bind "$1/hosts" /etc/hosts
exec "$2"
"#;

/// Sources that a node's /etc/nsswitch.conf may have, and whether a static program finds names with them by itself. Modules that are not
/// there, and those that do not answer, have the same effect.
const SOURCES: [(&str, bool); 7] = [
    ("files dns", true),
    ("resolve [!UNAVAIL=return] files", true),
    ("sss [UNAVAIL=return] files", false),
    ("mdns4_minimal [NOTFOUND=return UNAVAIL=return] dns", false),
    ("myhostname [NOTFOUND=return UNAVAIL=return]", false),
    ("winbind [!SUCCESS=return] files dns", false),
    ("", false),
];

/// Compiles the client statically, with these sources beside it.
fn compile(dir: &Path, name: &str, sources: &[PathBuf]) -> PathBuf {
    fs::write(dir.join("client.c"), CLIENT).expect("the directory can be written");
    let program = dir.join(name);
    // The linker warns of what names.c mends.
    let compiled = Command::new(prereq::require("cc", "gcc"))
        .args(["-static", "-Wall", "-Werror", "-o"])
        .arg(&program)
        .arg(dir.join("client.c"))
        .args(sources)
        .output()
        .expect("it was found");
    assert!(compiled.status.success(), "{compiled:?}");
    program
}

#[test]
fn static_program_finds_names_in_files_under_every_choice_of_sources() {
    let scratch = Scratch::new();
    let dir = scratch.path();
    let names = repository().join("gateway/cli/names.c");
    let alone = compile(dir, "alone", &[]);
    let with = compile(dir, "with", &[names]);
    fs::write(dir.join("hosts"), "192.0.2.7 name.example\n").expect("the directory can be written");
    for (sources, is_found) in SOURCES {
        let text = format!("hosts: {sources}\ngroup: {sources}\n");
        fs::write(dir.join("nsswitch.conf"), text).expect("the directory can be written");
        let run = |program: &Path| {
            let output = Command::new("unshare")
                .args(["--mount", "sh", "-ec", WITH_FILES, "sh"])
                .arg(dir)
                .arg(program)
                .output()
                .expect("every system has it");
            assert!(output.status.success(), "{sources:?}: {output:?}");
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        };
        assert_eq!(run(&with), "host 1 group 1", "{sources:?}");
        assert_eq!(run(&alone) == "host 1 group 1", is_found, "{sources:?}");
    }
}

//! Changes of the package to the SELinux policy of a node: it adds the labels of its files where the policy has types for containers, and
//! takes them away with the program. An installation never fails for it.

use std::process::{Command, Output};

use super::{read, repository, said};

/// Gives the functions of a script directories of their own, with programs that write down their calls. `$POLICY` is the name of the policy,
/// `$CONTEXTS` has its file contexts, `$ADDED` the module that was added before, `$MODULES` all modules; `$REFUSES` says that no module is
/// taken.
const ON_A_NODE: &str = r#"
for directory in /etc /run /sys/fs /usr/share; do
    mount -t tmpfs tmpfs $directory
done
mkdir -p /run/bin /run/switchyard /etc/selinux/mine/contexts/files /sys/fs/selinux
: >/run/switchyard/cri.sock
: >/sys/fs/selinux/enforce
[ -z "$POLICY" ] || printf '# SELINUXTYPE=other\nSELINUXTYPE=%s\n' "$POLICY" >/etc/selinux/config
printf "$CONTEXTS" >/etc/selinux/mine/contexts/files/file_contexts
for kind in container-selinux refpolicy; do
    mkdir -p /usr/share/switchyard/selinux/$kind
    echo "of this version, for $kind" >/usr/share/switchyard/selinux/$kind/switchyard.cil
done
cat >/run/bin/semodule <<'END'
#!/bin/sh
case "$*" in
    *--extract=switchyard) [ -z "$ADDED" ] || echo "$ADDED" >switchyard.cil ;;
    --list-modules=full) printf "$MODULES" ;;
    *)
        echo "call: semodule $*"
        [ -z "$REFUSES" ]
        ;;
esac
END
printf '#!/bin/sh\necho "call: restorecon $*"\n' >/run/bin/restorecon
chmod 0755 /run/bin/*
PATH=/run/bin:$PATH
"#;

/// Calls a function of a script on such a node.
fn call(script: &str, begins_with: &str, function: &str, environment: &[(&str, &str)]) -> Output {
    let text = read(&repository().join("deploy/debian").join(script));
    // Without what it does when dpkg calls it.
    let functions = text.split_once(begins_with);
    let (functions, _) = functions.expect("the functions stand before their calls");
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-ec"])
        .arg(format!("{ON_A_NODE}\n{functions}\n{function}"))
        .env_remove("DPKG_ROOT");
    for name in ["POLICY", "CONTEXTS", "ADDED", "MODULES", "REFUSES"] {
        command.env(name, "");
    }
    command.envs(environment.iter().copied());
    command.output().expect("every system has it")
}

/// The calls among the lines that it prints, without those that label files.
fn calls_of_semodule(output: &Output) -> Vec<String> {
    let lines = said(output).into_iter();
    lines
        .filter_map(|line| line.strip_prefix("call: semodule ").map(str::to_owned))
        .collect()
}

/// File contexts of Debian 12, of Debian 13, of Fedora, and of one of them with our module.
const WITHOUT_CONTAINERS: &str = "/run/.*\t<<none>>\n/etc/.*\tsystem_u:object_r:etc_t:s0\n";
const OF_REFPOLICY: &str = "/usr/bin/runc\t--\tsystem_u:object_r:container_engine_exec_t:s0\n";
const OF_CONTAINER_SELINUX: &str =
    "/usr/s?bin/runc\t--\tsystem_u:object_r:container_runtime_exec_t:s0\n";
const OWN: &str = "/usr/bin/switchyard\t--\tsystem_u:object_r:container_runtime_exec_t:s0\n";

#[test]
fn labels_are_added_to_policies_that_have_types_for_containers_and_once() {
    let with_own = [OF_CONTAINER_SELINUX, OWN].concat();
    let left_alone = [WITHOUT_CONTAINERS, OWN].concat();
    let install = |kind: &str| {
        vec![format!(
            "--priority=200 --install=/usr/share/switchyard/selinux/{kind}/switchyard.cil"
        )]
    };
    let now = "of this version, for container-selinux";
    // The policy, its file contexts, the module that was added before, and what is installed.
    let cases: [(&str, &str, &str, Vec<String>); 8] = [
        ("", "", "", Vec::new()),
        ("mine", WITHOUT_CONTAINERS, "", Vec::new()),
        ("mine", &left_alone, "", Vec::new()),
        ("another", OF_CONTAINER_SELINUX, "", Vec::new()),
        ("mine", OF_REFPOLICY, "", install("refpolicy")),
        (
            "mine",
            OF_CONTAINER_SELINUX,
            "",
            install("container-selinux"),
        ),
        (
            "mine",
            &with_own,
            "of a former version",
            install("container-selinux"),
        ),
        ("mine", &with_own, now, Vec::new()),
    ];
    for (policy, contexts, added, expected) in cases {
        let environment = [("POLICY", policy), ("CONTEXTS", contexts), ("ADDED", added)];
        let output = call(
            "postinst",
            "\n# Links in directories",
            "label_files",
            &environment,
        );
        assert!(output.status.success(), "{policy} {contexts}: {output:?}");
        assert_eq!(calls_of_semodule(&output), expected, "{contexts}");
        let has_labels = policy == "mine" && !contexts.starts_with(WITHOUT_CONTAINERS);
        for path in [
            "/run/switchyard",
            "/run/switchyard/cri.sock",
            "-R /etc/switchyard",
        ] {
            let is_labelled = said(&output).contains(&format!("call: restorecon {path}"));
            assert_eq!(is_labelled, has_labels, "{path}: {output:?}");
        }
    }
}

#[test]
fn installation_goes_on_without_labels() {
    let environment = [
        ("POLICY", "mine"),
        ("CONTEXTS", OF_REFPOLICY),
        ("REFUSES", "1"),
    ];
    let after = "label_files || true; echo goes on";
    let output = call("postinst", "\n# Links in directories", after, &environment);
    assert!(output.status.success(), "{output:?}");
    let said = said(&output);
    assert!(said.contains(&"goes on".to_owned()), "{said:#?}");
    let is_told =
        |line: &String| line.contains("does not take") && line.contains("docs/selinux.md");
    assert!(said.iter().any(is_told), "{said:#?}");
    // In a directory of another node, without the tools of SELinux, and where the kernel does not use it.
    for before in [
        "DPKG_ROOT=/run",
        "rm /run/bin/semodule",
        "rm /sys/fs/selinux/enforce",
    ] {
        let after = format!("{before}; label_files; echo goes on");
        let environment = [("POLICY", "mine"), ("CONTEXTS", OF_REFPOLICY)];
        let output = call("postinst", "\n# Links in directories", &after, &environment);
        assert!(output.status.success(), "{before}: {output:?}");
        assert_eq!(calls_of_semodule(&output), Vec::<String>::new(), "{before}");
    }
}

#[test]
fn removal_takes_its_own_labels_away_and_no_others() {
    let remove = vec!["--priority=200 --remove=switchyard".to_owned()];
    for (modules, expected) in [
        ("100 base pp\n200 switchyard cil\n", remove.clone()),
        ("200 switchyard        cil  \n400 switchyard cil\n", remove),
        ("100 base pp\n400 switchyard cil\n", Vec::new()),
        ("200 switchyard-local cil\n", Vec::new()),
        ("", Vec::new()),
    ] {
        for refuses in ["", "1"] {
            let environment = [("MODULES", modules), ("REFUSES", refuses)];
            let output = call(
                "postrm",
                "\ncase $1 in\n",
                "remove_file_contexts",
                &environment,
            );
            assert!(output.status.success(), "{modules}: {output:?}");
            assert_eq!(calls_of_semodule(&output), expected, "{modules}");
        }
    }
}

/// The patterns of paths in a module, with the types that their files get.
fn labels_of_module(kind: &str) -> Vec<(String, String)> {
    let file = format!("deploy/selinux/{kind}/switchyard.cil");
    let text = read(&repository().join(&file));
    let code = text
        .lines()
        .filter(|line| !line.trim_start().starts_with(';'));
    let code: String = code.collect::<Vec<_>>().join("\n");
    let count = |bracket: char| code.matches(bracket).count();
    assert_eq!(count('('), count(')'), "{file}");
    assert!(code.starts_with("(optional switchyard_files\n"), "{file}");
    let entries = code
        .lines()
        .filter_map(|line| line.trim().strip_prefix("(filecon \""));
    entries
        .map(|entry| {
            let (pattern, rest) = entry.split_once('"').expect("a path is quoted");
            let (_, label) = rest
                .split_once("(system_u object_r ")
                .expect("it has a label");
            let type_ = label.split(' ').next().unwrap_or_default();
            (pattern.to_owned(), type_.to_owned())
        })
        .collect()
}

#[test]
fn containers_may_use_what_they_mount_and_neither_sockets_nor_records() {
    let state = "/var/lib/switchyard";
    let [fedora, reference] = ["container-selinux", "refpolicy"].map(labels_of_module);
    // Their root file systems and volumes.
    let for_containers = [
        format!("{state}/containerd/root/[^/]*/snapshots(/.*)?"),
        format!("{state}/tasks/[^/]*/volumes(/.*)?"),
        format!("{state}/volumes/[^/]*/.*"),
    ];
    for labels in [&fedora, &reference] {
        for (pattern, type_) in labels {
            let may_write = type_ == "container_file_t";
            assert!(
                !may_write || for_containers.contains(pattern),
                "{pattern} is {type_}"
            );
        }
        for directory in ["/etc/switchyard(/.*)?", "/run/switchyard(/.*)?"] {
            let mut patterns = labels.iter().map(|(pattern, _)| pattern);
            assert!(patterns.any(|pattern| pattern == directory), "{directory}");
        }
    }
    // Both label the same files of the state directory.
    let below = |labels: &[(String, String)]| -> Vec<String> {
        let patterns = labels.iter().map(|(pattern, _)| pattern.clone());
        patterns
            .filter(|pattern| pattern.starts_with(state))
            .collect()
    };
    assert_eq!(below(&fedora), below(&reference));
}

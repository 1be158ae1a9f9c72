//! Tests of the queries and trials of runtimes: with Debian's runc.

use super::*;

#[test]
fn what_a_runtime_says_is_believed_word_for_word() {
    let said = json!({ "mountOptions": ["ro", "rro"], "linux": { "namespaces": ["pid", "user"] } });
    assert_eq!(
        RuntimeFeatures::from_features(&said),
        RuntimeFeatures {
            recursive_readonly: true,
            users: true
        }
    );
    let said = json!({ "mountOptions": ["ro"], "linux": {} });
    assert_eq!(
        RuntimeFeatures::from_features(&said),
        RuntimeFeatures::default()
    );
    assert_eq!(
        RuntimeFeatures::from_features(&json!("no object")),
        RuntimeFeatures::default()
    );
}

/// So is `/run` mounted by the initial RAM disk of Debian and Ubuntu.
#[test]
fn trials_pass_where_programs_in_the_run_directory_cannot_be_executed() {
    for flags in [
        MsFlags::MS_NOEXEC,
        MsFlags::MS_NOEXEC | MsFlags::MS_NOSUID,
        MsFlags::MS_NOEXEC | MsFlags::MS_NOSUID | MsFlags::MS_NODEV,
    ] {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        std::fs::create_dir(&run).unwrap();
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
        let tried = with_own_mounts(|| {
            let options = Some("mode=711");
            mount(Some("run"), &run, Some("tmpfs"), flags, options).unwrap();
            [Trial::RecursiveReadonly, Trial::Users]
                .map(|trial| run_trial("runc", trial, &run).map_err(|error| error.report()))
        });
        assert_eq!(tried.unwrap(), [Ok(()), Ok(())], "{flags:?}");
    }
}

/// `/run` is a tmpfs, which other programs may fill: at each file that a trial makes.
#[test]
fn trial_on_a_disk_that_is_full_says_nothing_of_the_runtime() {
    for inodes in 2..=7 {
        let dir = tempfile::tempdir().unwrap();
        let options = format!("nr_inodes={inodes}");
        let tried = with_own_mounts(|| {
            let flags = MsFlags::empty();
            let options = Some(options.as_str());
            mount(Some("run"), dir.path(), Some("tmpfs"), flags, options).unwrap();
            run_trial("runc", Trial::RecursiveReadonly, dir.path())
        });
        let error = tried.unwrap().unwrap_err();
        assert!(is_unwritable(&error), "{inodes} inodes: {}", error.report());
    }
}

/// Debian's runc has the `features` command, and passes the trials too.
#[tokio::test]
async fn a_runtime_that_says_it_can_passes_the_trial_and_one_that_cannot_be_run_does_not() {
    let dir = tempfile::tempdir().unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let reported = RuntimeFeatures::from_features(
        &query_features("runc")
            .await
            .unwrap()
            .expect("Debian's runc answers"),
    );
    assert_eq!(
        reported,
        RuntimeFeatures {
            recursive_readonly: true,
            users: true
        }
    );
    for trial in [Trial::RecursiveReadonly, Trial::Users] {
        run_trial("runc", trial, dir.path()).unwrap();
        assert!(run_trial("/bin/false", trial, dir.path()).is_err());
    }
    assert_eq!(
        std::fs::read_dir(dir.path().join("probe")).unwrap().count(),
        0
    );
    assert!(query_features("/no/such/runtime").await.is_err());
}

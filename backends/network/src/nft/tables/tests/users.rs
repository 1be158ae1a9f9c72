//! Tables in a user namespace, as on a node that is an unprivileged container.

use switchyard_linux::host_features::in_user_namespace;

use super::*;
use crate::nft::socket::MAX_SEND;

impl NftTables {
    /// Makes an empty table that only this socket may change, and that ends with it. There must be none.
    pub(crate) fn own_table(&mut self, family: NftFamily) {
        let first = self.socket.sequences(3);
        let action = Action::AddTable;
        let steps = [TableStep { family, action }];
        let mut sent =
            transaction(self.table.as_str(), &steps, first, None, true, MAX_SEND).unwrap();
        // The flags are the last value before the end of the batch, which has only headers: NFT_TABLE_F_OWNER.
        let end = sent.bytes.len() - 20;
        sent.bytes[end - 1] = 2;
        self.socket.send(&sent.bytes).unwrap();
        let answers = self.socket.answers().unwrap();
        assert_eq!(verdict(&answers, sent.first, sent.steps), Verdict::Done);
    }

    /// Sends no more bytes at once from now on, as where the machine allows no more. Returns how many it did before.
    pub(crate) fn limit_send(&mut self, max: usize) -> usize {
        std::mem::replace(&mut self.socket.longest_send, max)
    }

    /// Receives no more bytes of a datagram from now on: with less than a header, as if the kernel did not answer. Returns how many it did before.
    pub(crate) fn limit_receive(&mut self, max: usize) -> usize {
        let before = self.socket.buffer.len();
        self.socket.buffer.resize(max, 0);
        before
    }
}

/// As where only the owner of the table may look into its sets.
#[test]
fn element_that_nobody_shows_is_absent_only_without_its_set() {
    in_private_netns(|| {
        let mut tables = NftTables::open(TableName::default()).unwrap();
        let both = [TableSet::Ports, TableSet::PortsAt];
        let hidden = |family| BTreeSet::from(both.map(|set| (family, set)));
        assert_eq!(tables.check_hidden(&BTreeSet::new()), Ok(()));
        // There is no table.
        assert_eq!(tables.check_hidden(&hidden(NftFamily::Ip4)), Ok(()));
        tables.restore(NftFamily::Ip4, &BTreeSet::new()).unwrap();
        let refused = Err(Errno::EPERM);
        assert_eq!(tables.check_hidden(&hidden(NftFamily::Ip4)), refused);
        assert_eq!(tables.check_hidden(&hidden(NftFamily::Ip6)), Ok(()));
        // One of another program, without our sets.
        let mut owner = NftTables::open(TableName::default()).unwrap();
        owner.own_table(NftFamily::Ip6);
        assert_eq!(tables.check_hidden(&hidden(NftFamily::Ip6)), Ok(()));
    });
}

/// The variable by which the test below starts this program again.
const INSIDE: &str = "SWITCHYARD_TEST_TABLES_INSIDE";

/// Makes all tables in the namespaces of this process, if it is that of another test.
#[test]
fn tables_of_another_process() {
    if std::env::var_os(INSIDE).is_none() {
        return;
    }
    let mut monitor = NftMonitor::open(TableName::default()).unwrap();
    let mut tables = NftTables::open(TableName::default()).unwrap();
    for family in NftFamily::TABLES {
        tables.probe(family).unwrap();
        tables.restore(family, &elements(family)).unwrap();
        let found = tables.read(family).unwrap().unwrap();
        assert_eq!(found.elements(), &elements(family));
    }
    assert!(monitor.read(&[tables.port()]).unwrap().families.is_empty());
    // Some megabytes at once.
    let many = (1..=20_000)
        .map(|number| port(number, "10.88.0.2"))
        .collect();
    // Nothing of a change that is too long is done, and the next change passes.
    let max = tables.limit_send(1 << 16);
    let error = tables.restore(NftFamily::Ip4, &many).unwrap_err();
    assert!(
        matches!(error, NftError::TooLarge { max } if max == 1 << 16),
        "{error:?}"
    );
    let found = tables.read(NftFamily::Ip4).unwrap().unwrap();
    assert_eq!(found.elements(), &elements(NftFamily::Ip4));
    tables.limit_send(max);
    match tables.restore(NftFamily::Ip4, &many) {
        Ok(_) => {}
        Err(NftError::TooLarge { max }) => {
            assert!(in_user_namespace() && max < MAX_SEND, "{max}")
        }
        Err(error) => panic!("{error:?}"),
    }
    println!("all tables are made");
}

/// The root of a user namespace administers the networks that belong to it, and may not enlarge buffers beyond the machine's limits.
#[test]
fn root_of_a_user_namespace_makes_the_tables_of_its_own_networks_alone() {
    for (namespaces, may) in [
        (&["--net"][..], true),
        (&["--user", "--map-root-user", "--net"], true),
        (
            &[
                "--user",
                "--map-root-user",
                "--net",
                "--mount",
                "--pid",
                "--fork",
            ],
            true,
        ),
        // The network of the machine.
        (&["--user", "--map-root-user"], false),
    ] {
        let output = Command::new("unshare")
            .args(namespaces)
            .arg(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "nft::tables::tests::users::tables_of_another_process",
            ])
            .arg("--nocapture")
            .env(INSIDE, "1")
            .output()
            .expect("unshare is missing: install the Debian package util-linux");
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(
            text.contains("all tables are made"),
            may,
            "{namespaces:?}: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

//! Each target over its corpus, and over mutations of it that are the same in every run.
#[cfg(test)]
mod tests {
    use kbtp_fuzz::{Mutator, TARGETS, Target};
    use std::collections::BTreeSet;
    use std::panic::catch_unwind;
    use std::path::PathBuf;

    /// Mutations of the cheapest targets in an ordinary run, of dearer ones fewer; `KBTP_FUZZ_MUTATIONS` asks for another number.
    const MUTATIONS: usize = 100_000;

    fn corpus_folder() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus")
    }

    /// What was found by the fuzzer, in a corpus: an input to a line, in hexadecimal.
    const FOUND: &str = "found";

    /// The inputs of a target, by name of file or number of line, so that every run takes them in the same order.
    fn corpus(target: &Target) -> Vec<(String, Vec<u8>)> {
        let folder = corpus_folder().join(target.name);
        let entries =
            std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let mut inputs: Vec<_> = entries
            .flat_map(|entry| {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                let octets = std::fs::read(&path).unwrap();
                if name != FOUND {
                    return vec![(name, octets)];
                }
                let lines = std::str::from_utf8(&octets).unwrap().lines().enumerate();
                lines
                    .map(|(number, line)| {
                        (format!("{FOUND}, line {:04}", number + 1), from_hex(line))
                    })
                    .collect()
            })
            .collect();
        inputs.sort();
        assert!(!inputs.is_empty(), "{} is empty", folder.display());
        inputs
    }

    fn mutations() -> usize {
        std::env::var("KBTP_FUZZ_MUTATIONS").map_or(MUTATIONS, |n| n.parse().unwrap())
    }

    fn run(target: &Target, what: &str, octets: &[u8]) {
        if catch_unwind(|| (target.run)(octets)).is_err() {
            let hex: String = octets
                .iter()
                .flat_map(|o| [o >> 4, o & 15])
                .map(digit)
                .collect();
            panic!("{} failed on {what}, octets {hex}", target.name);
        }
    }

    fn from_hex(line: &str) -> Vec<u8> {
        let digit = |octet: u8| char::from(octet).to_digit(16).unwrap();
        let pairs = line.as_bytes().chunks(2);
        pairs
            .map(|pair| u8::try_from(digit(pair[0]) << 4 | digit(pair[1])).unwrap())
            .collect()
    }

    fn digit(nibble: u8) -> char {
        char::from_digit(u32::from(nibble), 16).unwrap()
    }

    fn replay(name: &str) {
        let target = TARGETS.iter().find(|target| target.name == name).unwrap();
        let corpus = corpus(target);
        run(target, "nothing", &[]);
        for (name, octets) in &corpus {
            run(target, name, octets);
        }
        // The seed is the target's name, so that no two run the same changes.
        let seed = name
            .bytes()
            .fold(0_u64, |seed, octet| seed.rotate_left(8) ^ u64::from(octet));
        let mut mutator = Mutator::new(seed);
        for case in 0..mutations() / target.cost {
            let (name, octets) = &corpus[mutator.below(corpus.len())];
            let mut octets = octets.clone();
            mutator.mutate(&mut octets);
            run(target, &format!("mutation {case}, of {name}"), &octets);
        }
    }

    macro_rules! replays {
        ($($name:ident)*) => {
            $(#[test]
            fn $name() {
                replay(stringify!($name));
            })*

            #[test]
            fn every_target_and_every_corpus_is_replayed() {
                let replayed = BTreeSet::from([$(stringify!($name).to_owned()),*]);
                let targets: BTreeSet<String> =
                    TARGETS.iter().map(|target| target.name.to_owned()).collect();
                let corpora: BTreeSet<String> = std::fs::read_dir(corpus_folder())
                    .unwrap()
                    .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                    .collect();
                assert_eq!(replayed, targets);
                assert_eq!(replayed, corpora);
            }
        };
    }

    replays! {
        kbtp_request
        kbtp_hello
        kbtp_hello_ack
        kbtp_completion
        kbtp_record
        kbtp_private_data
        kbtp_tlvs
        kbtp_memory
        mpa_startup
        ddp_segment
        rdmap_terminate
        target_session
        rdmap_stream
        control_frame
        initiator_session
        mlx5_wqe
        chain_memory
        chain_steps
        target_config
        command_line
        trace
        nic_step
        admin_head
        status_page
        config_file
        map_file
    }
}

//! Searches every state of each model: with all rules on nothing may go wrong, with any one of them off something must.
//!
//! The number of states is part of each test, so that a change which makes a model smaller does not go unnoticed.
//! `TRACE=1` shows the way to what goes wrong.

use std::fmt::{Debug, Write as _};
use std::hash::Hash;
use std::io::Write as _;
use std::time::Instant;

use pacchettino_model::claims::{Config, Owners, Without};
use pacchettino_model::{history, status, temporaries, wait};
use stateright::{Checker, Expectation, HasDiscoveries, Model};

struct Searched {
    states: usize,
    /// The properties that are violated, with the number of steps to there.
    wrong: Vec<(&'static str, usize)>,
    /// What should happen somewhere and does not.
    never: Vec<&'static str>,
}

fn search<M>(name: &str, model: M) -> Searched
where
    M: Model + Send + Sync + 'static,
    M::State: Debug + Hash + Clone + PartialEq + Send + Sync,
    M::Action: Debug + Clone + PartialEq + Send + Sync,
{
    let began = Instant::now();
    let properties = model.properties();
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    assert!(checker.is_done(), "{name}: not searched to the end");
    let mut searched = Searched { states: checker.unique_state_count(), wrong: Vec::new(), never: Vec::new() };
    for property in properties {
        match (checker.discovery(property.name), property.expectation) {
            (Some(path), Expectation::Always) => {
                let path = path.into_vec();
                searched.wrong.push((property.name, path.len() - 1));
                if std::env::var_os("TRACE").is_some() {
                    for (state, action) in path {
                        tell(&format!("{state:?}\n    {action:?}"));
                    }
                }
            }
            (None, Expectation::Sometimes) => searched.never.push(property.name),
            _ => {}
        }
    }
    let mut line = format!("{name}: {} states, {:.1?}", searched.states, began.elapsed());
    for (what, steps) in &searched.wrong {
        _ = write!(line, "; after {steps} steps not \"{what}\"");
    }
    tell(&line);
    searched
}

/// Past the test harness, which would keep it to itself.
fn tell(text: &str) {
    _ = writeln!(std::io::stderr(), "{text}");
}

#[track_caller]
fn holds<M>(name: &str, states: usize, model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Debug + Hash + Clone + PartialEq + Send + Sync,
    M::Action: Debug + Clone + PartialEq + Send + Sync,
{
    let searched = search(name, model);
    assert!(searched.wrong.is_empty(), "{name}: {:?}", searched.wrong);
    assert!(searched.never.is_empty(), "{name}: the model is too small: {:?}", searched.never);
    assert_eq!(searched.states, states, "{name}: the model has another size than it had");
}

#[track_caller]
fn breaks<M>(name: &str, model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Debug + Hash + Clone + PartialEq + Send + Sync,
    M::Action: Debug + Clone + PartialEq + Send + Sync,
{
    assert!(!search(name, model).wrong.is_empty(), "{name}: nothing goes wrong");
}

const fn tokens(threads: [usize; 3]) -> Config {
    Config::new(Owners::Tokens, threads)
}

const fn pids(threads: [usize; 3]) -> Config {
    Config { pids: 3, ..Config::new(Owners::Pids, threads) }
}

const THREADS: Config = tokens([2, 1, 0]);
const PROCESSES: Config = tokens([1, 1, 1]);
const PIDS: Config = pids([1, 1, 1]);
const PID_THREADS: Config = Config { pids: 2, ..pids([2, 1, 0]) };
const ZOMBIES: Config = Config { zombies: true, thread_ids: true, pids: 2, ..pids([1, 1, 0]) };
const VERDICTS: Config = Config { all_verdicts: true, ..THREADS };
const TWO_JOBS: Config = Config { jobs: 2, ..tokens([1, 1, 0]) };
const COPY: Config = Config { copy: true, ..tokens([1, 1, 0]) };
const PID_COPY: Config = Config { copy: true, ..PID_THREADS };
const FAULTS: Config = Config { faults: 1, ..THREADS };
const PID_FAULTS: Config = Config { faults: 1, ..PID_THREADS };
const LOCKS: Config = Config { deletes_locks: true, ..THREADS };
const SWEEPS: Config = Config { sweeps_locks: true, ..tokens([1, 1, 0]) };
const OWNERS: Config = Config { deletes_owners: true, ..THREADS };
const RELEASES: Config = Config { releases: true, ..THREADS };
const SWAPS: Config = Config { swaps: true, ..tokens([1, 1, 0]) };
const FORKS: Config = Config { forks: true, ..THREADS };
const FORKS_OF_THREE: Config = Config { forks: true, ..PROCESSES };
const LITTERS: Config = Config { litters: true, ..tokens([1, 1, 0]) };
const PID_LITTERS: Config = Config { litters: true, pids: 2, ..PIDS };
const REUSE: Config = Config { reuses: true, ..THREADS };
const PID_REUSE: Config = Config { reuses: true, ..PID_THREADS };
const REUSE_FAULTS: Config = Config { reuses: true, faults: 1, ..tokens([1, 1, 0]) };
const REUSE_TWO_JOBS: Config = Config { reuses: true, ..TWO_JOBS };
const REUSE_HANDED_OUT: Config = Config { reuses: true, hands_out: true, ..tokens([1, 1, 0]) };
const REUSE_DURABLE: Config = Config { reuses: true, durable: true, ..tokens([1, 1, 0]) };

/// Two jobs, so that there is a next one.
const PASSES: Config = Config { passes_on: true, ..TWO_JOBS };
const PASSES_THREADS: Config = Config { threads: [2, 0, 0], ..PASSES };
const PASSES_FAULTS: Config = Config { faults: 1, ..PASSES_THREADS };
const PASSES_LOCKS: Config = Config { deletes_locks: true, kills: false, ..PASSES };
const PASSES_LITTERS: Config = Config { litters: true, kills: false, ..PASSES_THREADS };
const PASSES_HANDED_OUT: Config = Config { hands_out: true, kills: false, ..PASSES_THREADS };
const PASSES_DURABLE: Config = Config { durable: true, ..PASSES_THREADS };

const HISTORY: history::Config = history::Config {
    claims: 3,
    put_back: [9, 9],
    kills_all: true,
    requeues: false,
    others_requeue: false,
    without: None,
};
const HISTORY_REQUEUES: history::Config =
    history::Config { claims: 2, put_back: [1, 1], requeues: true, others_requeue: true, ..HISTORY };
const HISTORY_OF_TWO_MINDS: history::Config =
    history::Config { claims: 2, put_back: [9, 0], kills_all: false, requeues: true, ..HISTORY };

macro_rules! all_rules_on {
    ($($test:ident: $config:expr, $states:literal;)*) => {$(
        #[test]
        fn $test() {
            holds(stringify!($test), $states, $config);
        }
    )*};
}

all_rules_on! {
    threads: THREADS, 683_854;
    processes: PROCESSES, 656_620;
    pids_of_processes: PIDS, 628_655;
    pids_of_threads: PID_THREADS, 93_385;
    zombies_and_ids_of_threads: ZOMBIES, 23_995;
    all_verdicts: VERDICTS, 990_748;
    two_jobs: TWO_JOBS, 709_803;
    a_copy_of_the_job: COPY, 184_731;
    a_copy_of_the_job_by_pid: PID_COPY, 572_060;
    files_beside_the_job: LITTERS, 194_822;
    files_beside_the_job_by_pid: PID_LITTERS, 24_752;
    files_beside_the_job_and_calls_that_fail: Config { faults: 1, ..LITTERS }, 650_607;
    reuse_and_files_beside_the_job: Config { reuses: true, ..LITTERS }, 232_695;
    calls_that_fail: FAULTS, 2_109_171;
    calls_that_fail_by_pid: PID_FAULTS, 263_970;
    lock_files_deleted: LOCKS, 1_480_962;
    lock_files_swept: SWEEPS, 70_577;
    owners_deleted: OWNERS, 990_411;
    queues_closed: RELEASES, 930_838;
    claims_renamed_by_others: SWAPS, 322_440;
    forks: FORKS, 708_162;
    forks_of_three: FORKS_OF_THREE, 750_879;
    reuse: REUSE, 906_971;
    reuse_by_pid: PID_REUSE, 138_037;
    reuse_and_calls_that_fail: REUSE_FAULTS, 116_050;
    reuse_and_two_jobs: REUSE_TWO_JOBS, 1_212_413;
    reuse_and_paths_handed_out: REUSE_HANDED_OUT, 198_151;
    reuse_and_power_cuts: REUSE_DURABLE, 28_662;
    from_job_to_job: PASSES, 1_018_624;
    from_job_to_job_of_threads: PASSES_THREADS, 274_974;
    from_job_to_job_or_spare: Config { reuses: true, ..PASSES_THREADS }, 336_188;
    from_job_to_job_and_all_verdicts: Config { all_verdicts: true, ..PASSES_THREADS }, 601_170;
    from_job_to_job_and_calls_that_fail: PASSES_FAULTS, 829_227;
    from_job_to_job_and_files_beside_them: PASSES_LITTERS, 1_748;
    from_job_to_job_and_lock_files_deleted: PASSES_LOCKS, 16_130;
    from_job_to_job_and_owners_deleted: Config { deletes_owners: true, ..PASSES_THREADS }, 399_431;
    from_job_to_job_and_queues_closed: Config { releases: true, ..PASSES_THREADS }, 486_287;
    from_job_to_job_and_forks: Config { forks: true, kills: false, threads: [2, 1, 0], ..PASSES }, 90_493;
    from_job_to_job_and_paths_handed_out: PASSES_HANDED_OUT, 1_332;
    from_job_to_job_and_power_cuts: PASSES_DURABLE, 258_588;
    waiting_inside_one_process: waiting([wait::Source::Inside; 2], false), 19_200;
    waiting_for_others: waiting([wait::Source::Outside; 2], true), 14_358;
    waiting_for_others_beside_a_retry: waiting([wait::Source::Outside, wait::Source::Retry], true), 40_507;
    waiting_for_others_and_own: waiting([wait::Source::Inside, wait::Source::Outside], true), 42_363;
    waiting_beside_a_retry: waiting([wait::Source::Inside, wait::Source::Retry], true), 92_183;
    waiting_for_promotions: waiting([wait::Source::Silent; 2], true), 14_358;
    waiting_and_signals: wait::Config { signals: true, ..waiting([wait::Source::Outside, wait::Source::Retry], true) }, 43_513;
    status_of_a_moving_job: status::Config { back: 2, without: None }, 3_354;
    a_listing_at_once: status::Listing { at_once: true }, 40;
    history: HISTORY, 4_121_659;
    history_and_requeues: HISTORY_REQUEUES, 4_287_758;
    history_by_recoveries_of_two_minds: HISTORY_OF_TWO_MINDS, 135_362;
    temporary_files: temporaries::Config { without: None }, 792;
}

#[test]
fn without_any_one_rule_a_claim_goes_wrong() {
    for without in Without::ALL {
        let config = match without {
            Without::R1RenameDecides
            | Without::R2OneTable
            | Without::R2EntersFirst
            | Without::R2LeavesLast
            | Without::R2LeavesByWhoEntered
            | Without::R5NotLinkUnlink
            | Without::R6LiveEmptyStays
            | Without::R8NeverBack => THREADS,
            Without::R4NeverAdopted | Without::R7HandleFirst | Without::R7Handle => PIDS,
            Without::R4Handle => SWAPS,
            Without::R5NoReplace | Without::R6NotRecursive => COPY,
            Without::R8LockedFirst => SWEEPS,
            Without::R8AllThreads | Without::R8ZombieIsDead | Without::R8ThreadIsNone => ZOMBIES,
            Without::R9StillLinked => LOCKS,
            Without::R9OwnersThere => OWNERS,
            Without::R3OneStep => PID_REUSE,
            Without::R10KeepsEntry | Without::R10KeepsVerdict => FAULTS,
            Without::R10NotReused => REUSE_FAULTS,
            Without::R11SeenEmpty => Config { reuses: true, ..LITTERS },
            Without::R11NotHandedOut => REUSE_HANDED_OUT,
            Without::R11NotDurable => REUSE_DURABLE,
            Without::R16NeverSettles | Without::R16ClosesLock | Without::R16OwnToken => FORKS_OF_THREE,
            Without::R16ClosesJudged => Config { forks: true, ..tokens([2, 1, 1]) },
            Without::R7SecondLook => REUSE_TWO_JOBS,
            Without::R11SeenEmptyLast => PASSES_LITTERS,
            Without::R11SameToken => PASSES_LOCKS,
            Without::R11StaysInTable => PASSES_THREADS,
            Without::R23Settle | Without::R23Recovery => LITTERS,
            Without::R23Emptied | Without::R23NotEmpty => PID_COPY,
            Without::R23OneAtATime => PID_LITTERS,
        };
        // These two do no harm but that a claim fails which need not.
        let only_harm = !matches!(without, Without::R2LeavesLast | Without::R6LiveEmptyStays);
        breaks(&format!("without {without:?}"), Config { only_harm, without: Some(without), ..config });
    }
}

/// The rules that hold for a directory that is made hold for one that goes from job to job as well.
#[test]
fn without_any_one_rule_a_directory_goes_astray() {
    for (without, config) in [
        (Without::R3OneStep, PASSES_THREADS),
        (Without::R7SecondLook, PASSES),
        (Without::R11SeenEmpty, PASSES_LITTERS),
        (Without::R11NotHandedOut, PASSES_HANDED_OUT),
        (Without::R11NotDurable, PASSES_DURABLE),
    ] {
        breaks(
            &format!("from job to job without {without:?}"),
            Config { only_harm: true, without: Some(without), ..config },
        );
    }
}

/// Where each claim has a directory of its own, rule 7's second look is a help: whatever it would stop, the handle stops
/// as well. Where directories are reused it is a guard: the handle may lead to the next job's claim.
#[test]
fn without_the_second_look_nothing_goes_wrong_where_no_directory_is_reused() {
    for config in [PID_THREADS, PIDS, TWO_JOBS] {
        let searched = search("without R7SecondLook", Config { without: Some(Without::R7SecondLook), ..config });
        assert!(searched.wrong.is_empty());
    }
}

const fn waiting(sources: [wait::Source; 2], watch: bool) -> wait::Config {
    wait::Config { sources, watch, errors: false, signals: false, without: None }
}

#[test]
fn without_any_one_rule_a_job_is_slept_through() {
    use wait::Source::{Inside, Outside, Retry};
    use wait::Without as W;
    for (without, config) in [
        (W::R13ArmedFirst, waiting([Outside, Outside], true)),
        (W::R13NotedFirst, waiting([Inside, Inside], false)),
        (W::R13NotedFirst, waiting([Outside, Retry], true)),
        (W::R13LookedAt, waiting([Inside, Inside], false)),
        (W::R13DrainingRaises, waiting([Outside, Outside], true)),
        (W::R13LeavingRaises, waiting([Outside, Retry], true)),
        (W::R13SendingRaises, waiting([Inside, Inside], false)),
        (W::R13LeaderWoken, waiting([Outside, Retry], true)),
        (W::R13HandedOver, wait::Config { signals: true, ..waiting([Outside, Outside], true) }),
        (W::R14ListedAfresh, waiting([Outside, Outside], true)),
        (W::R14LooksAgain, waiting([Outside, Outside], true)),
        (W::R14TimeFirst, waiting([Outside, Outside], true)),
        (W::R14LeftOne, waiting([Outside, Retry], true)),
    ] {
        breaks(&format!("without {without:?}"), wait::Config { without: Some(without), ..config });
    }
}

#[test]
fn without_any_one_rule_a_look_is_wrong() {
    use status::Without as W;
    for without in [W::R12ThreePasses, W::R12InOrder, W::R12WithFile] {
        breaks(&format!("without {without:?}"), status::Config { back: 2, without: Some(without) });
    }
    breaks("in pieces", status::Listing { at_once: false });
    // As much as three passes can do.
    breaks("three times back", status::Config { back: 3, without: None });
}

#[test]
fn without_any_one_rule_an_attempt_is_not_counted_once() {
    use history::Without as W;
    for without in W::ALL {
        let config = match without {
            W::RecordsFirst
            | W::CountsOnce
            | W::NeverRetracted
            | W::MarkFollowed
            | W::LooksAgain
            | W::LooksAfterReading => HISTORY,
            W::MarkCounts => HISTORY_OF_TWO_MINDS,
            W::OthersRequeue => HISTORY_REQUEUES,
        };
        breaks(&format!("history without {without:?}"), history::Config { without: Some(without), ..config });
    }
}

#[test]
fn without_any_one_rule_a_temporary_file_goes_wrong() {
    use temporaries::Without as W;
    for without in [W::R8LockedFirst, W::R15TokenFirst, W::R15LockFree, W::R15BareStays] {
        breaks(&format!("without {without:?}"), temporaries::Config { without: Some(without) });
    }
}

/// What is known not to hold; README.md says what follows from that. Where one of these is mended the model is to be
/// mended with it, and the test moves up.
#[test]
fn what_is_known_not_to_hold() {
    // Somebody deletes `owners/` while there are claims, and somebody else makes it again.
    breaks("owners remade", Config { remakes_owners: true, only_harm: true, ..OWNERS });
    // Only the poll notices these: a claim that ends with an error, a promotion, the requeue of one job.
    breaks("an error while claiming", wait::Config { errors: true, ..waiting([wait::Source::Outside; 2], true) });
    breaks("a move that raises nothing", waiting([wait::Source::Silent, wait::Source::Inside], false));
    breaks("a retry that nobody wanted", waiting([wait::Source::Retry, wait::Source::Inside], false));
}

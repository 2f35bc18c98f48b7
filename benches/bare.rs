//! What a job costs beside the bare system calls that it can't do without.
//!
//! `cargo bench --bench bare` measures both in turns, so that whatever else the machine does hits both, and prints a
//! table. The jobs go through `PACCHETTINO_BENCH_DIR`; without it, through memory where there is `/dev/shm`, since a
//! disk hides what is to be seen. With `-- --json` it is `benches/throughput.py`'s yardstick: for each number of jobs
//! that it reads it does the bare calls alone, and writes their rates.

/// `renameat2` is Linux's, and nix knows it for the GNU C library only.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod linux {
    use std::env;
    use std::error::Error;
    use std::ffi::{CStr, CString};
    use std::fs::{self, File};
    use std::hint::black_box;
    use std::io;
    use std::os::fd::OwnedFd;
    use std::path::{Path, PathBuf};
    use std::time::{Duration, Instant};

    use nix::fcntl::{AT_FDCWD, OFlag, RenameFlags, openat, renameat2};
    use nix::sys::stat::{Mode, fstat, mkdirat};
    use nix::unistd::{UnlinkatFlags, close, read, syncfs, unlinkat, write};
    use pacchettino::{CrashDetection, KeepPolicy, Kinds, Order, Outcome, Queue};
    use tempfile::TempDir;

    type Result<T> = std::result::Result<T, Box<dyn Error>>;

    const JOBS: u32 = 20_000;
    const ROUNDS: usize = 5;
    /// How many jobs go one way before as many go the other way.
    const TURN: usize = 200;
    const PAYLOAD: [u8; 256] = [b'x'; 256];

    pub(super) fn main() -> Result<()> {
        let parent = env::var_os("PACCHETTINO_BENCH_DIR").map_or_else(default_parent, PathBuf::from);
        let filesystem = filesystem(&parent)?;
        // Nothing in it is deleted before the end: on some filesystems that slows down what comes after.
        let home = tempfile::Builder::new().prefix("pacchettino-bench-").tempdir_in(parent)?;
        if env::args().any(|argument| argument == "--json") {
            serve_rates(&home, &filesystem)
        } else {
            print_table(&home, &filesystem)
        }
    }

    fn default_parent() -> PathBuf {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { memory.into() } else { env::temp_dir() }
    }

    /// The type of the filesystem that a directory is on.
    fn filesystem(directory: &Path) -> Result<String> {
        let directory = directory.canonicalize()?;
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let found = mounts
            .lines()
            .filter_map(|line| {
                let mut fields = line.split(' ').skip(1);
                Some((fields.next()?, fields.next()?))
            })
            .filter(|(mount_point, _)| directory.starts_with(mount_point))
            .max_by_key(|(mount_point, _)| mount_point.len());
        Ok(found.map_or("unknown", |(_, filesystem)| filesystem).to_owned())
    }

    fn serve_rates(home: &TempDir, filesystem: &str) -> Result<()> {
        for line in io::stdin().lines() {
            let jobs: u32 = line?.trim().parse()?;
            let bare = Bare::new(&fresh_directory(home)?, jobs)?;
            let ((), send) = timed(|| (0..jobs).try_for_each(|number| bare.send(number)))?;
            let ((), receive) = timed(|| (0..jobs).try_for_each(|number| bare.receive(number)))?;
            let (send, receive) = (rate(jobs, send), rate(jobs, receive));
            println!(r#"{{"filesystem": "{filesystem}", "send": {send:.0}, "receive": {receive:.0}}}"#);
        }
        Ok(())
    }

    fn print_table(home: &TempDir, filesystem: &str) -> Result<()> {
        let (sends, receives): (Vec<_>, Vec<_>) =
            (0..ROUNDS).map(|_| round(home)).collect::<Result<Vec<_>>>()?.into_iter().unzip();
        println!("{filesystem}, {JOBS} jobs of {} bytes, median of {ROUNDS} rounds\n", PAYLOAD.len());
        println!("| operation | bare calls | crate | bare jobs/s | crate jobs/s | crate/bare |");
        println!("| --- | ---: | ---: | ---: | ---: | ---: |");
        for (operation, times) in [("send", sends), ("receive", receives)] {
            let (bare, ours): (Vec<_>, Vec<_>) = times.into_iter().unzip();
            let (bare, ours) = (median(bare), median(ours));
            let (bare_rate, our_rate) = (rate(JOBS, bare), rate(JOBS, ours));
            println!(
                "| {operation} | {:.1?} | {:.1?} | {bare_rate:.0} | {our_rate:.0} | {:.2} |",
                bare / JOBS,
                ours / JOBS,
                our_rate / bare_rate,
            );
        }
        Ok(())
    }

    /// How long all jobs took, by bare calls and through the crate.
    type Times = (Duration, Duration);

    /// Sends, then receives all jobs, both ways.
    fn round(home: &TempDir) -> Result<(Times, Times)> {
        let bare = Bare::new(&fresh_directory(home)?, JOBS)?;
        let queue = Queue::open(fresh_directory(home)?, KeepPolicy::ALL, false, CrashDetection::LockFile)?;

        let send = in_turns(|number| bare.send(number), || queue.send(&PAYLOAD, None).map(drop))?;

        let (mut pass, listed) = timed(|| queue.pass(Kinds::ANY, Order::Fifo))?;
        let receive = in_turns(
            |number| bare.receive(number),
            || -> Result<()> {
                let claim = queue.claim_next(&mut pass)?.ok_or("a job is missing")?;
                black_box(claim.read()?);
                Ok(claim.settle(Outcome::Success)?)
            },
        )?;
        Ok((send, (receive.0, receive.1 + listed)))
    }

    fn in_turns<E: Into<Box<dyn Error>>>(
        mut bare: impl FnMut(u32) -> nix::Result<()>,
        mut ours: impl FnMut() -> std::result::Result<(), E>,
    ) -> Result<Times> {
        let mut times = Times::default();
        for first in (0..JOBS).step_by(TURN) {
            times.0 += timed(|| (first..).take(TURN).try_for_each(&mut bare))?.1;
            times.1 += timed(|| (0..TURN).try_for_each(|_| ours()))?.1;
        }
        Ok(times)
    }

    fn timed<T, E: Into<Box<dyn Error>>>(f: impl FnOnce() -> std::result::Result<T, E>) -> Result<(T, Duration)> {
        let start = Instant::now();
        let done = f().map_err(Into::into)?;
        Ok((done, start.elapsed()))
    }

    fn median(mut times: Vec<Duration>) -> Duration {
        times.sort_unstable();
        times[times.len() / 2]
    }

    fn rate(jobs: u32, time: Duration) -> f64 {
        f64::from(jobs) / time.as_secs_f64()
    }

    /// A new directory, on a disk that is done with what was written before.
    fn fresh_directory(home: &TempDir) -> Result<PathBuf> {
        let directory = TempDir::new_in(home)?.keep();
        syncfs(File::open(&directory)?)?;
        Ok(directory)
    }

    /// The least that a queue does, with handles of its directories.
    struct Bare {
        names: Vec<Names>,
        tmp: OwnedFd,
        queued: OwnedFd,
        processing: OwnedFd,
        success: OwnedFd,
    }

    /// What a job is called on its way, made beforehand: the loops that are measured allocate nothing.
    struct Names {
        draft: CString,
        entry: CString,
        claim: CString,
    }

    /// In a claim's directory.
    const FILE: &CStr = c"raw";

    const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

    impl Bare {
        fn new(directory: &Path, jobs: u32) -> Result<Self> {
            let make = |name| -> Result<OwnedFd> {
                let path = directory.join(name);
                fs::create_dir(&path)?;
                Ok(openat(AT_FDCWD, &path, DIRECTORY, Mode::empty())?)
            };
            Ok(Self {
                names: (0..jobs).map(Names::new).collect::<Result<_>>()?,
                tmp: make("tmp")?,
                queued: make("queued")?,
                processing: make("processing")?,
                success: make("success")?,
            })
        }

        fn send(&self, number: u32) -> nix::Result<()> {
            let names = &self.names[number as usize];
            let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
            let file = openat(&self.tmp, &*names.draft, flags, Mode::from_bits_truncate(0o666))?;
            assert_eq!(write(&file, &PAYLOAD)?, PAYLOAD.len());
            close(file)?;
            renameat2(&self.tmp, &*names.draft, &self.queued, &*names.entry, RenameFlags::RENAME_NOREPLACE)
        }

        fn receive(&self, number: u32) -> nix::Result<()> {
            let names = &self.names[number as usize];
            mkdirat(&self.processing, &*names.claim, Mode::from_bits_truncate(0o777))?;
            let claim = openat(&self.processing, &*names.claim, DIRECTORY, Mode::empty())?;
            renameat2(&self.queued, &*names.entry, &claim, FILE, RenameFlags::RENAME_NOREPLACE)?;

            let file = openat(&claim, FILE, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
            let mut data = [0; PAYLOAD.len()];
            assert_eq!(fstat(&file)?.st_size.try_into(), Ok(data.len()));
            assert_eq!(read(&file, &mut data)?, data.len());
            black_box(&data);
            close(file)?;

            renameat2(&claim, FILE, &self.success, &*names.entry, RenameFlags::RENAME_NOREPLACE)?;
            unlinkat(&self.processing, &*names.claim, UnlinkatFlags::RemoveDir)?;
            close(claim)
        }
    }

    impl Names {
        fn new(number: u32) -> Result<Self> {
            let (id, token) = (format!("01a227f2-b0d6-7000-826e-{number:012}"), "abcdefghij");
            Ok(Self {
                draft: CString::new(format!("{id}-{token}"))?,
                entry: CString::new(format!("raw-{id}"))?,
                claim: CString::new(format!("raw-{id}.{token}"))?,
            })
        }
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
use linux::main;

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn main() {
    println!("the bare calls that this compares with are those of Linux");
}

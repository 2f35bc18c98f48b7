//! The bare system calls that a queue can't do without, and the crate without Python: the yardstick of `make bench`.
//!
//! A line of the standard input is a piece of work, `<sequence> <first> <jobs> <size> <directory>`: the sequence is one
//! of those in `run`, and is done for the jobs of `size` bytes that are numbered from `first` on. When all is prepared
//! the answer is `ready`, and any line starts it. Then the answer is when it began and ended, in seconds since 1970 or,
//! for `wake`, how many seconds each job took. The directory is a queue's, and the jobs have the names that a queue
//! gives them, so that what is sent here can be taken there.

/// `renameat2` is Linux's, and nix knows it for the GNU C library only.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod linux {
    use std::error::Error;
    use std::ffi::{CStr, CString};
    use std::fs;
    use std::hint::black_box;
    use std::io;
    use std::os::fd::OwnedFd;
    use std::path::Path;
    use std::sync::mpsc;
    use std::thread;
    use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

    use nix::dir::{Dir, Type};
    use nix::fcntl::{AT_FDCWD, OFlag, RenameFlags, openat, renameat2};
    use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
    use nix::sys::stat::{Mode, mkdirat};
    use nix::unistd::{UnlinkatFlags, close, fsync, read, syncfs, unlinkat, write};
    use pacchettino::{CrashDetection, KeepPolicy, Kinds, Order, Outcome, Queue};

    type Result<T> = std::result::Result<T, Box<dyn Error>>;

    pub(super) fn main() -> Result<()> {
        let mut line = String::new();
        while io::stdin().read_line(&mut line)? > 0 {
            let times: Vec<_> = run(line.trim_end())?.iter().map(|time| time.as_secs_f64().to_string()).collect();
            println!("{}", times.join(" "));
            line.clear();
        }
        Ok(())
    }

    /// Says that all is prepared, and waits until those who do the same at the same time are ready, too.
    fn wait_for_start() -> Result<Duration> {
        println!("ready");
        io::stdin().read_line(&mut String::new())?;
        now()
    }

    /// By a clock that all processes have.
    fn now() -> Result<Duration> {
        Ok(SystemTime::now().duration_since(UNIX_EPOCH)?)
    }

    fn run(line: &str) -> Result<Vec<Duration>> {
        let [sequence, first, jobs, size, directory] =
            line.splitn(5, ' ').collect::<Vec<_>>().try_into().map_err(|_| format!("no piece of work: {line:?}"))?;
        let (first, jobs, size) = (first.parse()?, jobs.parse()?, size.parse()?);
        if let Some(sequence) = sequence.strip_prefix("core-") {
            return core(sequence, jobs, size, Path::new(directory));
        }
        let mut bare = Bare::new(Path::new(directory), first, jobs, size)?;
        let start = wait_for_start()?;
        match sequence {
            "send" => bare.each(|bare, job| bare.send(job, false))?,
            "send-durable" => bare.each(|bare, job| bare.send(job, true))?,
            "send-durable-together" => bare.send_together()?,
            "claim" => bare.each(|bare, job| bare.claim(job, End::Keep))?,
            "claim-delete" => bare.each(|bare, job| bare.claim(job, End::Delete))?,
            "claim-durable" => bare.each(|bare, job| bare.claim(job, End::KeepDurably))?,
            "claim-reused" => bare.claim_with_one_directory(End::Keep)?,
            "claim-reused-delete" => bare.claim_with_one_directory(End::Delete)?,
            "claim-without" => bare.each(|bare, job| bare.claim_without_directory(job, End::Keep))?,
            "claim-without-delete" => bare.each(|bare, job| bare.claim_without_directory(job, End::Delete))?,
            "fill" => bare.each(Bare::fill)?,
            "list" => each_entry(&bare.success, |_| Ok(()))?,
            "put-back" => each_entry(&bare.queued, |name| move_file(&bare.queued, name, &bare.success, name))?,
            "cleanup" => each_entry(&bare.success, |name| unlinkat(&bare.success, name, UnlinkatFlags::NoRemoveDir))?,
            "wake" => return bare.wake(),
            _ => return Err(format!("no such sequence: {sequence}").into()),
        }
        Ok(vec![start, now()?])
    }

    /// What Python's layer is laid upon.
    fn core(sequence: &str, jobs: usize, size: usize, directory: &Path) -> Result<Vec<Duration>> {
        let queue = Queue::open(directory, KeepPolicy::ALL, false, CrashDetection::LockFile)?;
        let payload = vec![b'x'; size];
        let start = wait_for_start()?;
        match sequence {
            "send" => (0..jobs).try_for_each(|_| queue.send(&payload, None).map(drop))?,
            "receive" => {
                let mut pass = queue.pass(Kinds::ANY, Order::Random)?;
                for _ in 0..jobs {
                    let claim = queue.claim_next(&mut pass)?.ok_or("a job is missing")?;
                    black_box(claim.read()?);
                    claim.settle(Outcome::Success)?;
                }
            }
            _ => return Err(format!("no such sequence of the core: {sequence}").into()),
        }
        Ok(vec![start, now()?])
    }

    /// The least that a queue does, with handles of its directories.
    struct Bare {
        jobs: Vec<Names>,
        payload: Vec<u8>,
        buffer: Vec<u8>,
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
        /// The file in the claim's directory, from `processing/` on.
        claimed: CString,
    }

    /// How a job ends.
    #[derive(Clone, Copy)]
    enum End {
        Keep,
        KeepDurably,
        Delete,
    }

    const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

    impl Bare {
        fn new(directory: &Path, first: usize, jobs: usize, size: usize) -> Result<Self> {
            let open = |name| -> Result<OwnedFd> {
                let path = directory.join(name);
                fs::create_dir_all(&path)?;
                Ok(openat(AT_FDCWD, &path, DIRECTORY, Mode::empty())?)
            };
            Ok(Self {
                jobs: (first..first + jobs).map(Names::new).collect::<Result<_>>()?,
                payload: vec![b'x'; size],
                buffer: vec![0; size + 1],
                tmp: open("tmp")?,
                queued: open("queued")?,
                processing: open("processing")?,
                success: open("success")?,
            })
        }

        fn each(&mut self, mut work: impl FnMut(&mut Self, &Names) -> nix::Result<()>) -> nix::Result<()> {
            let jobs = std::mem::take(&mut self.jobs);
            jobs.iter().try_for_each(|job| work(self, job))
        }

        fn send(&self, job: &Names, durable: bool) -> nix::Result<()> {
            self.create(&self.tmp, &job.draft, durable)?;
            move_file(&self.tmp, &job.draft, &self.queued, &job.entry)?;
            if durable { fsync(&self.queued) } else { Ok(()) }
        }

        /// All are written, then flushed together, then moved; then their directory is flushed.
        fn send_together(&self) -> nix::Result<()> {
            self.jobs.iter().try_for_each(|job| self.create(&self.tmp, &job.draft, false))?;
            syncfs(&self.tmp)?;
            self.jobs.iter().try_for_each(|job| move_file(&self.tmp, &job.draft, &self.queued, &job.entry))?;
            fsync(&self.queued)
        }

        /// A job that is done already.
        fn fill(&mut self, job: &Names) -> nix::Result<()> {
            self.create(&self.success, &job.entry, false)
        }

        fn create(&self, directory: &OwnedFd, name: &CStr, durable: bool) -> nix::Result<()> {
            let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
            let file = openat(directory, name, flags, Mode::from_bits_truncate(0o666))?;
            if !self.payload.is_empty() {
                assert_eq!(write(&file, &self.payload)?, self.payload.len());
            }
            if durable {
                fsync(&file)?;
            }
            close(file)
        }

        /// With a fresh directory for the job.
        fn claim(&mut self, job: &Names, end: End) -> nix::Result<()> {
            mkdirat(&self.processing, &*job.claim, Mode::from_bits_truncate(0o777))?;
            move_file(&self.queued, &job.entry, &self.processing, &job.claimed)?;
            if let End::KeepDurably = end {
                fsync(openat(&self.processing, &*job.claim, DIRECTORY, Mode::empty())?)?;
                fsync(&self.processing)?;
            }
            self.read_and_settle(job, &job.claimed, end)?;
            unlinkat(&self.processing, &*job.claim, UnlinkatFlags::RemoveDir)
        }

        /// With one directory, which goes from job to job.
        fn claim_with_one_directory(&mut self, end: End) -> nix::Result<()> {
            let mut last = c"spare".to_owned();
            mkdirat(&self.processing, &*last, Mode::from_bits_truncate(0o777))?;
            for job in std::mem::take(&mut self.jobs) {
                move_file(&self.processing, &last, &self.processing, &job.claim)?;
                move_file(&self.queued, &job.entry, &self.processing, &job.claimed)?;
                self.read_and_settle(&job, &job.claimed, end)?;
                last = job.claim;
            }
            unlinkat(&self.processing, &*last, UnlinkatFlags::RemoveDir)
        }

        fn claim_without_directory(&mut self, job: &Names, end: End) -> nix::Result<()> {
            move_file(&self.queued, &job.entry, &self.processing, &job.entry)?;
            self.read_and_settle(job, &job.entry, end)
        }

        fn read_and_settle(&mut self, job: &Names, claimed: &CStr, end: End) -> nix::Result<()> {
            let file = openat(&self.processing, claimed, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
            // The buffer has room for one byte more: a read that does not fill it shows the end as well.
            assert_eq!(read(&file, &mut self.buffer)?, self.payload.len());
            black_box(&self.buffer);
            close(file)?;
            match end {
                End::Keep => move_file(&self.processing, claimed, &self.success, &job.entry),
                End::Delete => unlinkat(&self.processing, claimed, UnlinkatFlags::NoRemoveDir),
                End::KeepDurably => {
                    move_file(&self.processing, claimed, &self.success, &job.entry)?;
                    fsync(&self.success)
                }
            }
        }

        /// How long after a send a thread that slept in `inotify` has the job's bytes.
        fn wake(mut self) -> Result<Vec<Duration>> {
            let watch = Inotify::init(InitFlags::IN_CLOEXEC)?;
            let queued = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&self.queued));
            watch.add_watch(queued.as_str(), AddWatchFlags::IN_MOVED_TO)?;
            let jobs = std::mem::take(&mut self.jobs);
            let bare = &self;
            thread::scope(|scope| {
                let (woken, wakes) = mpsc::channel();
                let consumer = scope.spawn({
                    let jobs = &jobs;
                    move || -> nix::Result<()> {
                        let mut buffer = vec![0; bare.buffer.len()];
                        for job in jobs {
                            watch.read_events()?;
                            mkdirat(&bare.processing, &*job.claim, Mode::from_bits_truncate(0o777))?;
                            move_file(&bare.queued, &job.entry, &bare.processing, &job.claimed)?;
                            let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
                            read(openat(&bare.processing, &*job.claimed, flags, Mode::empty())?, &mut buffer)?;
                            if woken.send(Instant::now()).is_err() {
                                break;
                            }
                        }
                        Ok(())
                    }
                });
                let times = jobs
                    .iter()
                    .map(|job| {
                        thread::sleep(Duration::from_millis(3));
                        bare.send(job, false)?;
                        let sent = Instant::now();
                        Ok(wakes.recv()?.saturating_duration_since(sent))
                    })
                    .collect();
                consumer.join().map_err(|_| "the consumer panicked")??;
                times
            })
        }
    }

    impl Names {
        fn new(number: usize) -> Result<Self> {
            let (id, token) = (format!("01a227f2-b0d6-7000-826e-{number:012}"), "abcdefghij");
            Ok(Self {
                draft: CString::new(format!("{id}-{token}"))?,
                entry: CString::new(format!("raw-{id}"))?,
                claim: CString::new(format!("raw-{id}.{token}"))?,
                claimed: CString::new(format!("raw-{id}.{token}/raw"))?,
            })
        }
    }

    fn move_file(from: &OwnedFd, name: &CStr, to: &OwnedFd, new_name: &CStr) -> nix::Result<()> {
        renameat2(from, name, to, new_name, RenameFlags::RENAME_NOREPLACE)
    }

    fn each_entry(directory: &OwnedFd, mut act: impl FnMut(&CStr) -> nix::Result<()>) -> nix::Result<()> {
        // Opened anew: what is read of a directory counts for all that share its description.
        let mut entries = Dir::openat(directory, c".", DIRECTORY, Mode::empty())?;
        for entry in entries.iter() {
            let entry = entry?;
            if entry.file_type() != Some(Type::Directory) {
                act(entry.file_name())?;
            }
        }
        Ok(())
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
use linux::main;

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn main() {
    println!("the bare calls that this compares with are those of Linux");
}

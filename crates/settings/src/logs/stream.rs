//! The output streams: standard error, and optionally standard output, buffered, for info messages.

use std::io::{self, BufWriter, Write};

type Sink = Box<dyn Write + Send>;

/// Write errors are ignored: there is nowhere to report them.
pub(super) struct Streams {
    errors: Sink,
    /// Present when the streams are split.
    info: Option<BufWriter<Sink>>,
}

impl Streams {
    pub(super) fn standard(split: Option<usize>) -> Self {
        let info = split.map(|buffer| (Box::new(io::stdout()) as Sink, buffer));
        Self::to(Box::new(io::stderr()), info)
    }

    /// `info` is the stream for info messages and the size of its buffer in bytes.
    pub(super) fn to(errors: Sink, info: Option<(Sink, usize)>) -> Self {
        Self { errors, info: info.map(|(sink, buffer)| BufWriter::with_capacity(buffer, sink)) }
    }

    pub(super) fn write(&mut self, line: &str, is_info: bool) {
        let line = line.as_bytes();
        let _ = match &mut self.info {
            Some(info) if is_info => info.write_all(line),
            // Info messages that precede an error are written before it.
            Some(info) => info.flush().and_then(|()| self.errors.write_all(line)),
            None => self.errors.write_all(line),
        };
    }

    pub(super) fn flush(&mut self) {
        if let Some(info) = &mut self.info {
            let _ = info.flush();
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A stream that captures what is written.
    #[derive(Clone, Default)]
    pub(in super::super) struct Captured(Arc<Mutex<Vec<u8>>>);

    impl Captured {
        pub(in super::super) fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn streams(split: Option<usize>) -> (Streams, Captured, Captured) {
        let (errors, info) = (Captured::default(), Captured::default());
        let sink = split.map(|buffer| (Box::new(info.clone()) as Sink, buffer));
        (Streams::to(Box::new(errors.clone()), sink), errors, info)
    }

    #[test]
    fn everything_goes_to_one_stream_unless_split() {
        let (mut streams, errors, _) = streams(None);
        streams.write("info\n", true);
        streams.write("error\n", false);
        assert_eq!(errors.text(), "info\nerror\n");
    }

    #[test]
    fn info_messages_are_written_immediately_without_a_buffer() {
        let (mut streams, errors, info) = streams(Some(0));
        streams.write("info\n", true);
        streams.write("error\n", false);
        assert_eq!((info.text().as_str(), errors.text().as_str()), ("info\n", "error\n"));
    }

    #[test]
    fn buffered_info_messages_are_written_by_a_flush_an_error_or_a_full_buffer() {
        let (mut streams, _, info) = streams(Some(12));
        streams.write("one\n", true);
        assert_eq!(info.text(), "");
        streams.flush();
        assert_eq!(info.text(), "one\n");
        streams.write("two\n", true);
        streams.write("error\n", false);
        assert_eq!(info.text(), "one\ntwo\n");
        streams.write("three\n", true);
        streams.write("fifteen letters\n", true);
        assert_eq!(info.text(), "one\ntwo\nthree\nfifteen letters\n");
    }
}

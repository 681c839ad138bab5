"""A name server: who the brokers are, and which topics they carry (spec/remoting.md 2.22)."""

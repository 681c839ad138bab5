from twisted.application.service import ServiceMaker

rmqha = ServiceMaker("rmqha", "rmqha.tap", "RocketMQ HA: commit log replication, slave or master.", "rmqha")

from twisted.application.service import ServiceMaker

rmqha = ServiceMaker("rmqha", "rmqha.tap", "RocketMQ HA: commit log replication, slave or master.", "rmqha")
rmqha_namesrv = ServiceMaker("rmqha-namesrv", "rmqha.namesrv_tap", "RocketMQ's name server.", "rmqha-namesrv")

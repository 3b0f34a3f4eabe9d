"""Nodes, Pods and Deployments as plain data: documents in, documents out.

Import: any module.
Never: hold a client of the API server.
"""
